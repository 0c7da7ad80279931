"""Gemma 3, its text model: five local layers and a global one, each kind with a RoPE base of its own."""

from __future__ import annotations

from math import sqrt

from vantage.attention import GroupedQuery, QKNorm
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each, same
from vantage.families import llama, llama_layout
from vantage.families.common import ACTIVATIONS, rope_rule
from vantage.families.family import Family
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.position import Rope
from vantage.spec.model import SANDWICH, Embedding, Head, Layer, ModelSpec, Scores


def spec(c: Config) -> ModelSpec:
    """Published configs leave out much: the numbers here are what transformers takes then."""
    c.must_be("use_bidirectional_attention", False)  # an embedding model's mask
    c.inert("cache_implementation")  # which cache transformers is to take
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6), offset=1.0)
    act = c.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh")
    ffn, attend = FeedForward(c.whole("intermediate_size", 9216, low=1), act), attention(c)
    turn, kinds = ropes(c), layer_kinds(c)
    layers = tuple(
        Layer(attend, ffn, norm, mask, (QKNorm(norm), turn[kind]), wiring=SANDWICH)
        for kind, mask in zip(kinds, llama_layout.masks(kinds, llama_layout.window(c, silent=4096)), strict=True)
    )
    width = c.whole("hidden_size", 2304, low=1)
    return ModelSpec(
        c.whole("vocab_size", 262_208, low=1),
        width,
        layers,
        embedding=Embedding(scale=sqrt(width), rounded=True),
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", True), softcap=c.number("final_logit_softcapping", None)),
        max_length=c.whole("max_position_embeddings", 131_072, low=1),
    )


def attention(c: Config) -> GroupedQuery:
    bias = c.flag("attention_bias", False)
    scores = Scores(
        c.number("query_pre_attn_scalar", 256.0) ** -0.5,
        softcap=c.number("attn_logit_softcapping", None),
        dropout=c.number("attention_dropout", 0.0),
    )
    heads, kv_heads = c.whole("num_attention_heads", 8, low=1), c.whole("num_key_value_heads", 4, low=1)
    return GroupedQuery(heads, kv_heads, c.whole("head_dim", 256, low=1), bias=bias, out_bias=bias, scores=scores)


def layer_kinds(c: Config) -> tuple[str, ...]:
    """Every sixth layer is global, or every so many, unless ``layer_types`` says it layer by layer."""
    every = c.whole("sliding_window_pattern", c.whole("_sliding_window_pattern", 6, low=1), low=1)
    n = c.whole("num_hidden_layers", 26, low=1)
    return llama_layout.layer_types(
        c, [llama_layout.SLIDING if (i + 1) % every else llama_layout.FULL for i in range(n)]
    )


def ropes(c: Config, *, longest: int = 131_072) -> dict[str, Rope]:
    """For each kind of layer, from ``rope_parameters`` or (before transformers 5) from three separate keys."""
    rope_config, scaling = c.part("rope_parameters"), c.part("rope_scaling")
    longest = c.whole("max_position_embeddings", longest, low=1)
    bases = {
        llama_layout.FULL: c.number("rope_theta", 1_000_000.0),
        llama_layout.SLIDING: c.number("rope_local_base_freq", 10_000.0),
    }
    parts = {kind: None if rope_config is None else rope_config.part(kind) for kind in bases}
    parts[llama_layout.FULL] = parts[llama_layout.FULL] or scaling

    def turn(part: Config | None, base: float) -> Rope:
        return Rope(base) if part is None else Rope(part.number("rope_theta", base), rope_rule(part, c, longest))

    return {kind: turn(parts[kind], base) for kind, base in bases.items()}


def links(c: Config, spec: ModelSpec) -> list[Link]:
    norms = same(
        {
            "blocks.{i}.steps.0.before.weight": "model.layers.{i}.input_layernorm.weight",
            "blocks.{i}.steps.0.after.weight": "model.layers.{i}.post_attention_layernorm.weight",
            "blocks.{i}.steps.1.before.weight": "model.layers.{i}.pre_feedforward_layernorm.weight",
            "blocks.{i}.steps.1.after.weight": "model.layers.{i}.post_feedforward_layernorm.weight",
        }
    )
    named = {link.our_names for link in norms}
    rest = [link for link in llama.layer_links(spec) if link.our_names not in named]  # LLaMA has two norms
    return [*llama.ends(spec), *each(len(spec.layers), [*norms, *rest, *llama_layout.qk_norm_links()])]


FAMILY = Family("gemma3_text", spec, links, gguf="gemma3_text")
