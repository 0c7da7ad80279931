"""EXAONE 4: norms after each part and none before; RoPE in window layers, and in all where there is no window."""

from __future__ import annotations

from vantage.attention import QKNorm
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.families import llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.llama import ends
from vantage.families.module_links import gated_links, modules, self_attention
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec, Wiring


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    attention, ffn = llama_layout.attention(c), llama_layout.feed_forward(c)
    width = llama_layout.window(c, silent=4096)
    kinds = layer_kinds(c, width)
    normed, turn = QKNorm(norm), rope(c)
    layers = [
        Layer(
            attention,
            ffn,
            norm,
            mask,
            (normed, turn) if width is None or kind == llama_layout.SLIDING else (normed,),
            wiring=Wiring(before=False, after=True),
        )
        for kind, mask in zip(kinds, llama_layout.masks(kinds, width), strict=True)
    ]
    return llama_layout.model(c, layers, norm)


def layer_kinds(c: Config, width: int | None) -> tuple[str, ...]:
    """Every fourth layer is global, or every so many. A pattern in letters stands beside ``layer_types`` only."""
    n, listed = llama_layout.count(c), "layer_types" in c
    if listed or width is None:
        c.inert("sliding_window_pattern")
    every = 1 if listed or width is None else c.whole("sliding_window_pattern", 4, low=1)
    return llama_layout.layer_types(
        c, [llama_layout.SLIDING if (i + 1) % every else llama_layout.FULL for i in range(n)]
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    layer, ours, theirs = spec.layers[0], "blocks.{i}.steps", "model.layers.{i}"
    q, k, v, out = (f"{theirs}.self_attn.{x}_proj" for x in "qkvo")
    norms = {
        f"{ours}.0.after": f"{theirs}.post_attention_layernorm",
        f"{ours}.1.after": f"{theirs}.post_feedforward_layernorm",
    }
    table = [
        *modules(norms, bias=False),
        *self_attention(f"{ours}.0.sublayer", q, k, v, out, layer.attention.shape(spec.width), bias=False),
        *llama_layout.qk_norm_links(),
        *gated_links("", f"{theirs}.mlp", layer.ffn),
    ]
    return [*ends(spec), *each(len(spec.layers), table)]


FAMILY = Family("exaone4", spec, links)
