"""LLaMA 1, 2, 3: RMSNorm before each part, RoPE, grouped-query attention, SwiGLU."""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, each, same
from vantage.families.common import ACTIVATIONS, rope
from vantage.families.family import Family
from vantage.families.layer_parts import dense_feed_forward, grouped_query
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.spec.model import Head, Layer, ModelSpec, Scores


def spec(c: Config) -> ModelSpec:
    heads = c.whole("num_attention_heads", low=1)
    bias = c.flag("attention_bias", False)
    attention = GroupedQuery(
        heads,
        c.whole("num_key_value_heads", heads, low=1),
        c.whole("head_dim", None, low=1),
        bias=bias,
        out_bias=bias,
        scores=Scores(dropout=c.number("attention_dropout", 0.0)),
    )
    ffn = FeedForward(
        c.whole("intermediate_size", low=1), c.choice("hidden_act", ACTIVATIONS, "silu"), bias=c.flag("mlp_bias", False)
    )
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    layer = Layer(attention, ffn, norm, qk=(rope(c),))
    c.inert("pretraining_tp")  # how the training was split: only changes how products are rounded
    return ModelSpec(
        c.whole("vocab_size", low=1),
        c.whole("hidden_size", low=1),
        (layer,) * c.whole("num_hidden_layers", low=1),
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", False)),
        max_length=c.whole("max_position_embeddings", 2048, low=1),
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [*ends(spec), *each(len(spec.layers), layer_links(spec))]


def ends(spec: ModelSpec) -> list[Link]:
    """Embedding, final norm, and a head of its own if there is one."""
    head = {} if spec.head is None or spec.head.tied else {"head.linear.weight": "lm_head.weight"}
    return same({"embed.tokens.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", **head})


def layer_links(spec: ModelSpec) -> list[Link]:
    ffn = dense_feed_forward(spec.layers[0])
    links = attention_links(spec)
    for kind, present in (("weight", True), ("bias", ffn.bias)):
        links += gated(ffn.hidden, kind) if present else []
    return links


def attention_links(spec: ModelSpec) -> list[Link]:
    """The norms before both parts, and attention: what layers keep that have another feed-forward part."""
    attention = grouped_query(spec.layers[0])
    links = same(
        {
            "blocks.{i}.steps.0.before.weight": "model.layers.{i}.input_layernorm.weight",
            "blocks.{i}.steps.1.before.weight": "model.layers.{i}.post_attention_layernorm.weight",
        }
    )
    for kind, present in (("weight", True), ("bias", attention.bias)):
        links += [joined_qkv(spec, kind)] if present else []
    for kind, present in (("weight", True), ("bias", attention.out_bias)):
        name = {f"blocks.{{i}}.steps.0.sublayer.out.{kind}": f"model.layers.{{i}}.self_attn.o_proj.{kind}"}
        links += same(name) if present else []
    return links


def joined_qkv(spec: ModelSpec, kind: str) -> Link:
    s = spec.layers[0].attention.shape(spec.width)
    sizes = (s.heads * s.key_dim, s.kv_heads * s.key_dim, s.kv_heads * s.value_dim)
    their = tuple(f"model.layers.{{i}}.self_attn.{x}_proj.{kind}" for x in "qkv")
    return Joined(f"blocks.{{i}}.steps.0.sublayer.qkv.{kind}", their, sizes)


def gated(hidden: int, kind: str) -> list[Link]:
    ours, theirs = "blocks.{i}.steps.1.sublayer", "model.layers.{i}.mlp"
    pair = (f"{theirs}.gate_proj.{kind}", f"{theirs}.up_proj.{kind}")
    return [
        Joined(f"{ours}.gate_up.{kind}", pair, (hidden, hidden)),
        *same({f"{ours}.down.{kind}": f"{theirs}.down_proj.{kind}"}),
    ]


FAMILY = Family("llama", spec, links, ignored=("rotary_emb.inv_freq",), gguf="llama")
