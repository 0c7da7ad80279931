"""Qwen3-Next: three layers with a gated delta rule, then one of attention with a gated output; experts on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vantage.attention import GatedDelta, GroupedQuery, OutputGate, QKNorm
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Regrouped, Reshape, Rows, each, same
from vantage.families import llama_layout, qwen3_moe
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.layer_parts import experts_of
from vantage.families.llama import ends
from vantage.families.module_links import gated_links, kinds, modules
from vantage.model.experts import Experts
from vantage.model.norms import RMSNorm
from vantage.spec.model import FeedForwardConfig, Layer, ModelSpec
from vantage.spec.parts import Buildable

LINEAR = "linear_attention"
OURS, THEIRS = "blocks.{i}.steps.0.sublayer", "model.layers.{i}"


def spec(c: Config) -> ModelSpec:
    c.inert("output_router_logits", "router_aux_loss_coef")  # what training may ask for besides the logits
    return hybrid(c, feed_forwards(c), rope(c, partial=True, share=0.25))


def hybrid(c: Config, feed_forwards: Sequence[FeedForwardConfig], turn: Buildable) -> ModelSpec:
    """Delta rules, and attention on every fourth layer. ``turn``: what rotates its queries and keys."""
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6), offset=1.0)
    bias = c.flag("attention_bias", False)
    attention, rule = llama_layout.attention(c, bias=bias, out_bias=bias, head_dim=256), delta(c, norm.eps)
    every = c.whole("full_attention_interval", 4, low=1)
    silent = [LINEAR if (i + 1) % every else llama_layout.FULL for i in range(llama_layout.count(c))]
    mixers = llama_layout.layer_types(c, silent, (llama_layout.FULL, LINEAR))
    if LINEAR in mixers:
        c.must_be("hidden_act", "silu", "swish")  # the convolution's as well, which has no other here
    layers = [
        Layer(rule, ffn, norm)
        if mixer == LINEAR
        else Layer(attention, ffn, norm, qk=(QKNorm(norm), turn), output=(OutputGate(bias=bias),))
        for mixer, ffn in zip(mixers, feed_forwards, strict=True)
    ]
    return llama_layout.model(c, layers, norm)


def delta(c: Config, eps: float) -> GatedDelta:
    heads, key_heads = c.whole("linear_num_value_heads", 32, low=1), c.whole("linear_num_key_heads", 16, low=1)
    key_dim, value_dim = c.whole("linear_key_head_dim", 128, low=1), c.whole("linear_value_head_dim", 128, low=1)
    return GatedDelta(heads, RMSNorm(eps), key_heads, key_dim, value_dim, c.whole("linear_conv_kernel_dim", 4, low=2))


def feed_forwards(c: Config) -> list[FeedForwardConfig]:
    """Qwen 3's, with one more expert that every token goes to, behind a gate."""
    shared = llama_layout.feed_forward(c, "shared_expert_intermediate_size")
    return [
        replace(ffn, shared=shared, shared_gate=True) if isinstance(ffn, Experts) else ffn
        for ffn in qwen3_moe.feed_forwards(c, renormalise=True)
    ]


# ---- links


def links(c: Config, spec: ModelSpec) -> list[Link]:
    table = ends(spec)
    for i, layer in enumerate(spec.layers):
        attention, ffn = layer.attention, layer.ffn
        linear = isinstance(attention, GatedDelta)
        table += each([i], norm_links())
        table += each([i], delta_links(attention, spec.width) if linear else attention_links(attention, spec.width))
        table += each([i], expert_links(layer) if isinstance(ffn, Experts) else llama_layout.feed_forward_links(layer))
    return table


def norm_links() -> list[Link]:
    names = ("input_layernorm", "post_attention_layernorm")
    return modules({f"blocks.{{i}}.steps.{n}.before": f"{THEIRS}.{name}" for n, name in enumerate(names)}, bias=False)


def attention_links(attention: object, width: int) -> list[Link]:
    """``q_proj`` holds the query and the gate of one head, then those of the next."""
    assert isinstance(attention, GroupedQuery)
    s, theirs = attention.shape(width), f"{THEIRS}.self_attn"
    d, heads, keys = s.key_dim, s.heads * s.key_dim, s.kv_heads * s.key_dim
    first = [2 * d * h + i for h in range(s.heads) for i in range(d)]
    order = (*first, *range(2 * heads, 2 * heads + 2 * keys), *(row + d for row in first))
    ours = (f"{OURS}.qkv", f"{OURS}.output.0.map")
    projections: list[Link] = [
        Regrouped(
            tuple(f"{name}.{kind}" for name in ours),
            tuple(f"{theirs}.{x}_proj.{kind}" for x in "qkv"),
            (heads + 2 * keys, heads),
            (2 * heads, keys, keys),
            Rows(order),
        )
        for kind in kinds(attention.bias)
    ]
    out = modules({f"{OURS}.out": f"{theirs}.o_proj"}, bias=attention.out_bias)
    return [*projections, *out, *llama_layout.qk_norm_links()]


def delta_links(delta: object, width: int) -> list[Link]:
    """Their projections come in groups of key heads: q, k, v and z of one, then of the next; b and a likewise."""
    assert isinstance(delta, GatedDelta)
    s, theirs = delta.shape(width), f"{THEIRS}.linear_attn"
    each_key = s.heads // s.kv_heads  # how many heads share one of keys
    keys, values = s.kv_heads * s.key_dim, s.heads * s.value_dim
    qkvz, ba = 2 * keys + 2 * values, 2 * s.heads
    q, k, v, z = _grouped(s.kv_heads, (s.key_dim, s.key_dim, each_key * s.value_dim, each_key * s.value_dim), 0)
    b, a = _grouped(s.kv_heads, (each_key, each_key), qkvz)
    return [
        Regrouped(
            (f"{OURS}.qkv.weight", f"{OURS}.gates.weight"),
            (f"{theirs}.in_proj_qkvz.weight", f"{theirs}.in_proj_ba.weight"),
            (2 * keys + values, values + 2 * s.heads),
            (qkvz, ba),
            Rows((*q, *k, *v, *z, *b, *a)),
        ),
        *state_links(delta, width),
    ]


def state_links(delta: GatedDelta, width: int) -> list[Link]:
    """All of a delta rule but its projections."""
    s, theirs = delta.shape(width), f"{THEIRS}.linear_attn"
    channels = 2 * s.kv_heads * s.key_dim + s.heads * s.value_dim
    return [
        *same(
            {f"{OURS}.conv.weight": f"{theirs}.conv1d.weight"},
            Reshape((channels, delta.taps), (channels, 1, delta.taps)),
        ),
        *same({f"{OURS}.{x}": f"{theirs}.{x}" for x in ("dt_bias", "A_log")}),
        *modules({f"{OURS}.norm": f"{theirs}.norm", f"{OURS}.out": f"{theirs}.out_proj"}, bias=False),
    ]


def _grouped(groups: int, sizes: tuple[int, ...], first: int) -> list[list[int]]:
    """The rows of each part, where every group holds all parts one after the other; ``first`` is the first row."""
    starts, whole = [sum(sizes[:i]) for i in range(len(sizes))], sum(sizes)
    return [
        [first + g * whole + start + i for g in range(groups) for i in range(size)]
        for start, size in zip(starts, sizes, strict=True)
    ]


def expert_links(layer: Layer) -> list[Link]:
    theirs, ours = f"{THEIRS}.mlp", "blocks.{i}.steps.1.sublayer"
    ffn = experts_of(layer)
    return [
        *llama_layout.expert_links(layer, theirs, ("gate_proj", "up_proj", "down_proj")),
        *gated_links(".shared", f"{theirs}.shared_expert", ffn.shared),
        *modules({f"{ours}.shared_gate": f"{theirs}.shared_expert_gate"}, bias=False),
    ]


# mtp: further layers that guess more than one token ahead, which transformers leaves out as well
FAMILY = Family("qwen3_next", spec, links, ignored=("mtp.",))
