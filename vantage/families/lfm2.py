"""LFM2: short convolutions between two gates, and a layer of attention here and there."""

from __future__ import annotations

from vantage.attention import GatedConvolution, GroupedQuery, QKNorm
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Reshape, each, same
from vantage.families import llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.layer_parts import dense_feed_forward
from vantage.families.module_links import joined, modules, self_attention
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec

CONVOLUTION = "conv"
OURS, THEIRS = "blocks.{i}.steps", "model.layers.{i}"


def spec(c: Config) -> ModelSpec:
    # how it was initialised, and the width once more under names that transformers does not read
    c.inert("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init")
    width, heads = c.whole("hidden_size", low=1), c.whole("num_attention_heads", low=1)
    for name, follows in (("block_dim", width), ("conv_dim", width), ("conv_dim_out", width), ("num_heads", heads)):
        c.must_be(name, follows)
    c.must_be("block_use_swiglu", True)
    c.must_be("use_pos_enc", True)
    norm = RMSNorm(c.number("norm_eps", 1e-5))
    c.must_be("block_norm_eps", norm.eps)
    attention = GroupedQuery(heads, c.whole("num_key_value_heads", 8, low=1), c.whole("head_dim", None, low=1))
    convolution = GatedConvolution(c.whole("conv_L_cache", 3, low=2), bias=c.flag("conv_bias", False))
    ffn, qk = FeedForward(hidden(c), "silu"), (QKNorm(norm), rope(c, base=1_000_000.0))
    layers = {llama_layout.FULL: Layer(attention, ffn, norm, qk=qk), CONVOLUTION: Layer(convolution, ffn, norm)}
    tied = c.flag("tie_embedding", True)
    if "tie_embedding" in c:
        c.must_be("tie_word_embeddings", tied)  # the same under a later name
    return llama_layout.model(c, [layers[kind] for kind in layer_kinds(c)], norm, tied=tied)


def layer_kinds(c: Config) -> tuple[str, ...]:
    """``full_attn_idxs`` names the layers of attention, unless ``layer_types`` says what each layer is."""
    n = llama_layout.count(c)
    full = c.numbers("full_attn_idxs", tuple(range(n)))
    silent = [llama_layout.FULL if i in full else CONVOLUTION for i in range(n)]
    return llama_layout.layer_types(c, silent, (llama_layout.FULL, CONVOLUTION))


def hidden(c: Config) -> int:
    """The feed-forward layer's width: two thirds of what the config says, rounded up to whole blocks."""
    size = c.whole("block_ff_dim", c.whole("intermediate_size", 12_288, low=1), low=1)
    factor, block = c.number("block_ffn_dim_multiplier", 1.0), c.whole("block_multiple_of", 256, low=1)
    if not c.flag("block_auto_adjust_ff_dim", True):
        return size
    return -(-int(factor * int(2 * size / 3)) // block) * block


# ---- links


def links(c: Config, spec: ModelSpec) -> list[Link]:
    head = {} if spec.head is None or spec.head.tied else {"head.linear": "lm_head"}
    ends = {"embed.tokens": "model.embed_tokens", "norm": "model.embedding_norm", **head}
    table = modules(ends, bias=False)
    for i, layer in enumerate(spec.layers):
        attends = isinstance(layer.attention, GroupedQuery)
        table += each([i], attention_links(layer, spec.width) if attends else convolution_links(layer, spec.width))
        table += each([i], feed_forward_links(layer))
    return table


def attention_links(layer: Layer, width: int) -> list[Link]:
    ours, theirs = f"{OURS}.0.sublayer", f"{THEIRS}.self_attn"
    q, k, v, out = (f"{theirs}.{x}_proj" for x in ("q", "k", "v", "out"))
    return [
        *self_attention(ours, q, k, v, out, layer.attention.shape(width), bias=False),
        *modules({f"{ours}.qk.0.{x}_norm": f"{theirs}.{x}_layernorm" for x in "qk"}, bias=False),
    ]


def convolution_links(layer: Layer, width: int) -> list[Link]:
    convolution = layer.attention
    assert isinstance(convolution, GatedConvolution)
    ours, theirs, taps = f"{OURS}.0.sublayer", f"{THEIRS}.conv", convolution.taps
    bias = {f"{ours}.conv.bias": f"{theirs}.conv.bias"} if convolution.bias else {}
    return [
        *modules({f"{ours}.maps": f"{theirs}.in_proj", f"{ours}.out": f"{theirs}.out_proj"}, bias=convolution.bias),
        *same({f"{ours}.conv.weight": f"{theirs}.conv.weight"}, Reshape((width, taps), (width, 1, taps))),
        *same(bias),
    ]


def feed_forward_links(layer: Layer) -> list[Link]:
    ffn, ours, theirs = dense_feed_forward(layer), f"{OURS}.1.sublayer", f"{THEIRS}.feed_forward"
    return [
        *modules({f"{OURS}.0.before": f"{THEIRS}.operator_norm", f"{OURS}.1.before": f"{THEIRS}.ffn_norm"}, bias=False),
        *joined(f"{ours}.gate_up", (f"{theirs}.w1", f"{theirs}.w3"), (ffn.hidden, ffn.hidden), bias=False),
        *modules({f"{ours}.down": f"{theirs}.w2"}, bias=False),
    ]


FAMILY = Family("lfm2", spec, links)
