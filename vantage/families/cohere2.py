"""Command R7B and Command A (Cohere 2): parts side by side, RoPE in window layers, no position in the others."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.families import llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.layer_parts import dense_feed_forward
from vantage.families.llama import ends
from vantage.families.module_links import joined, modules, self_attention
from vantage.model.norms import LayerNorm
from vantage.spec.model import Layer, ModelSpec, Parallel


def spec(c: Config) -> ModelSpec:
    check_layout(c)
    norm = LayerNorm(c.number("layer_norm_eps", 1e-5), bias=False)
    bias = c.flag("attention_bias", False)
    attention = llama_layout.attention(c, bias=bias, out_bias=bias)
    every = c.whole("sliding_window_pattern", 4, low=1)
    c.must_be("layer_switch", every)
    c.must_be("head_dim", attention.shape(c.whole("hidden_size", low=1)).width // attention.heads)
    n = llama_layout.count(c)
    silent = [llama_layout.SLIDING if (i + 1) % every else llama_layout.FULL for i in range(n)]
    kinds = llama_layout.layer_types(c, silent)
    masks = llama_layout.masks(kinds, llama_layout.window(c, silent=4096))
    ffn, turn = llama_layout.feed_forward(c), rope(c, pairing="adjacent")
    layers = [
        Layer(attention, ffn, norm, mask, (turn,) if kind == llama_layout.SLIDING else (), wiring=Parallel(norms=1))
        for kind, mask in zip(kinds, masks, strict=True)
    ]
    return llama_layout.model(c, layers, norm, tied=True, scale=c.number("logit_scale", 0.0625))


def check_layout(c: Config) -> None:
    """Keys that published configs carry and transformers does not read: what it computes is what they must say."""
    for name in ("use_gated_activation", "use_parallel_block", "use_embedding_sharing"):
        c.must_be(name, True)
    c.must_be("use_qk_norm", False)
    c.must_be("rotary_pct", 1.0)
    c.must_be("position_embedding_type", "rope_gptj")
    c.must_be("order_of_interleaved_layers", "local_attn_first")
    c.inert("use_parallel_embedding", "cache_implementation")  # how it runs on several machines, and with which cache


def links(c: Config, spec: ModelSpec) -> list[Link]:
    layer, theirs = spec.layers[0], "model.layers.{i}"
    ours, ffn, bias = "blocks.{i}.sublayers", dense_feed_forward(layer), c.flag("attention_bias", False)
    q, k, v, out = (f"{theirs}.self_attn.{x}_proj" for x in "qkvo")
    pair = (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
    table = [
        *modules({"blocks.{i}.norms.0": f"{theirs}.input_layernorm"}, bias=False),
        *self_attention(f"{ours}.0", q, k, v, out, layer.attention.shape(spec.width), bias=bias),
        *joined(f"{ours}.1.gate_up", pair, (ffn.hidden, ffn.hidden), bias=False),
        *modules({f"{ours}.1.down": f"{theirs}.mlp.down_proj"}, bias=False),
    ]
    return [*ends(spec), *each(len(spec.layers), table)]


FAMILY = Family("cohere2", spec, links)
