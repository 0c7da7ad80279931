"""Gemma 3n, its text model: several residual streams (AltUp), sparse gates, and late layers that read earlier keys."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from vantage.attention import GroupedQuery, QKNorm
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each, same
from vantage.checkpoints.tensor_names import Tensors
from vantage.errors import CheckpointError
from vantage.families import gemma3, llama_layout
from vantage.families.common import ACTIVATIONS
from vantage.families.family import Family
from vantage.families.layer_parts import grouped_query
from vantage.families.module_links import gated_links, joined, modules
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.model.unit import UnitRMS
from vantage.spec.altup import AltUp
from vantage.spec.model import SANDWICH, Embedding, Head, Layer, ModelSpec, Scores

OURS, THEIRS = "blocks.{i}", "model.layers.{i}"


def spec(c: Config) -> ModelSpec:
    """Published configs leave out much: the numbers here are what transformers takes then."""
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    act = c.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh")
    n = c.whole("num_hidden_layers", 35, low=1)
    types = llama_layout.layer_types(c, [llama_layout.SLIDING if (i + 1) % 5 else llama_layout.FULL for i in range(n)])
    masks = llama_layout.masks(types, llama_layout.window(c, silent=512))
    attend, turn = attention(c, norm.eps), gemma3.ropes(c, longest=32_768)
    ffns = [FeedForward(hidden, act, sparsity=share) for hidden, share in zip(widths(c, n), shares(c, n), strict=True)]
    layers = tuple(
        Layer(attend, ffn, norm, mask, (QKNorm(norm, source is None), turn[kind]), wiring=SANDWICH, source=source)
        for ffn, kind, mask, source in zip(ffns, types, masks, sources(c, types), strict=True)
    )
    width = c.whole("hidden_size", 2048, low=1)
    softcap = c.number("final_logit_softcapping", None if c.says("final_logit_softcapping") else 30.0)
    return ModelSpec(
        c.whole("vocab_size", 262_400, low=1),
        width,
        layers,
        embedding=Embedding(scale=sqrt(width), rounded=True),
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", True), softcap=softcap),
        max_length=c.whole("max_position_embeddings", 32_768, low=1),
        altup=altup(c, act),
    )


def attention(c: Config, eps: float) -> GroupedQuery:
    bias = c.flag("attention_bias", False)
    return GroupedQuery(
        c.whole("num_attention_heads", 8, low=1),
        c.whole("num_key_value_heads", 2, low=1),
        c.whole("head_dim", 256, low=1),
        bias=bias,
        out_bias=bias,
        scores=Scores(1.0, dropout=c.number("attention_dropout", 0.0)),
        value_norm=UnitRMS(eps),
    )


def altup(c: Config, activation: str) -> AltUp:
    return AltUp(
        c.whole("vocab_size_per_layer_input", 262_144, low=1),
        c.whole("hidden_size_per_layer_input", 256, low=1),
        c.whole("altup_num_inputs", 4, low=1),
        c.whole("altup_active_idx", 0),
        c.whole("laurel_rank", 64, low=1),
        activation,
        c.flag("altup_correct_scale", True),
        c.number("altup_coef_clip", None if c.says("altup_coef_clip") else 120.0),
    )


def widths(c: Config, layers: int) -> tuple[int, ...]:
    """Of the feed-forward layers: one number for all, or one for each."""
    if not isinstance(c.plain("intermediate_size") if "intermediate_size" in c else 0, (list, tuple)):
        return (c.whole("intermediate_size", 16_384, low=1),) * layers
    return tuple(map(int, _for_each(c, "intermediate_size", (), layers)))


def shares(c: Config, layers: int) -> tuple[float, ...]:
    """Of the gates that are 0, layer by layer."""
    sparse = 10 if layers > 10 else 0
    return _for_each(c, "activation_sparsity_pattern", (0.95,) * sparse + (0.0,) * (layers - sparse), layers)


def _for_each(c: Config, name: str, silent: tuple[float, ...], layers: int) -> tuple[float, ...]:
    numbers = c.numbers(name, silent)
    if len(numbers) != layers:
        raise CheckpointError(f"config.json: {name} speaks of {len(numbers)} layers, num_hidden_layers is {layers}")
    return numbers


def sources(c: Config, types: Sequence[str]) -> list[int | None]:
    """Whose keys each layer reads: the last ones read those of the last layer of their kind that has its own."""
    n, shared = len(types), c.whole("num_kv_shared_layers", 15)
    own = types[: n - shared]
    missing = set(types) - set(own)
    if shared >= n or missing:
        raise CheckpointError(
            f"config.json: num_kv_shared_layers is {shared} of {n} layers: no earlier layer is "
            f"{' or '.join(repr(kind) for kind in sorted(missing or types))}"
        )
    last = {kind: max(i for i, own_kind in enumerate(own) if own_kind == kind) for kind in own}
    return [None if i < len(own) else last[kind] for i, kind in enumerate(types)]


# ---- links


def links(c: Config, spec: ModelSpec) -> list[Link]:
    assert spec.altup is not None
    head = {} if spec.head is None or spec.head.tied else {"head.linear": "lm_head"}
    ends = {
        "embed.tokens": "model.embed_tokens",
        "embed.streams.tokens": "model.embed_tokens_per_layer",
        "embed.streams.of_embedding": "model.per_layer_model_projection",
        "embed.streams.norm": "model.per_layer_projection_norm",
        "norm.norm": "model.norm",
        **head,
    }
    maps = {
        "embed.streams.maps.{i}": "model.altup_projections.{i}",
        "norm.maps.{i}": "model.altup_unembed_projections.{i}",
    }
    table = [*modules(ends, bias=False), *each(spec.altup.streams - 1, modules(maps, bias=False))]
    for i, layer in enumerate(spec.layers):
        rest = [*attention_links(layer, spec.width), *stream_links(), *gated_links("", f"{THEIRS}.mlp", layer.ffn)]
        table += each([i], rest)
    return table


def attention_links(layer: Layer, width: int) -> list[Link]:
    attention, ours, theirs = grouped_query(layer), f"{OURS}.steps.0.sublayer", f"{THEIRS}.self_attn"
    s = attention.shape(width)
    own = "qkv" if layer.source is None else "q"
    sizes = (s.heads * s.key_dim, s.kv_heads * s.key_dim, s.kv_heads * s.value_dim)[: len(own)]
    return [
        *joined(f"{ours}.qkv", [f"{theirs}.{x}_proj" for x in own], sizes, bias=attention.bias),
        *modules({f"{ours}.out": f"{theirs}.o_proj"}, bias=attention.out_bias),
        *modules({f"{ours}.qk.0.{x}_norm": f"{theirs}.{x}_norm" for x in own if x != "v"}, bias=False),
    ]


def stream_links() -> list[Link]:
    names = {
        "steps.0.before": "input_layernorm",
        "steps.0.after": "post_attention_layernorm",
        "steps.1.before": "pre_feedforward_layernorm",
        "steps.1.after": "post_feedforward_layernorm",
        "predict": "altup.prediction_coefs",
        "correct": "altup.correction_coefs",
        "router": "altup.modality_router",
        "router_norm": "altup.router_norm",
        "left": "laurel.linear_left",
        "right": "laurel.linear_right",
        "rank_norm": "laurel.post_laurel_norm",
        "token_gate": "per_layer_input_gate",
        "token_out": "per_layer_projection",
        "token_norm": "post_per_layer_input_norm",
    }
    scale = same({f"{OURS}.scale": f"{THEIRS}.altup.correct_output_scale"})
    return [*scale, *modules({f"{OURS}.{our}": f"{THEIRS}.{their}" for our, their in names.items()}, bias=False)]


# ---- tensors that are stored and not used


class WithoutSharedKeys:
    """A checkpoint without the keys and values of layers that read another's: some store them all the same."""

    def __init__(self, tensors: Any):
        self.tensors: Tensors = tensors
        config = Config(tensors.config.get("text_config") or tensors.config)
        n, shared = config.whole("num_hidden_layers", 35), config.whole("num_kv_shared_layers", 15)
        parts = ("k_proj", "v_proj", "k_norm", "v_norm")
        self._unused = tuple(f"layers.{i}.self_attn.{part}." for i in range(max(1, n - shared), n) for part in parts)

    def names(self) -> list[str]:
        return [name for name in self.tensors.names() if not any(part in name for part in self._unused)]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors.shape(name)

    def get(self, name: str) -> Tensor:
        return self.tensors.get(name)


FAMILY = Family("gemma3n_text", spec, links, unpacked=WithoutSharedKeys)
