"""Qwen 2 and 2.5: LLaMA with biases on q, k and v, and a window on the upper layers if it is switched on."""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.families import llama, llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.spec.masks import Mask
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    layer = Layer(llama_layout.attention(c, bias=True), llama_layout.feed_forward(c), norm, qk=(rope(c),))
    return llama_layout.model(c, [replace(layer, mask=mask) for mask in masks(c)], norm)


def masks(c: Config, *, below: int = 28) -> tuple[Mask, ...]:
    """Sliding from layer ``max_window_layers`` up, unless ``layer_types`` says it layer by layer."""
    width = llama_layout.window(c, used=c.flag("use_sliding_window", False), silent=4096)
    below = c.whole("max_window_layers", below)
    slides = [width is not None and i >= below for i in range(llama_layout.count(c))]
    return llama_layout.masks(
        llama_layout.layer_types(c, [llama_layout.SLIDING if s else llama_layout.FULL for s in slides]), width
    )


FAMILY = Family("qwen2", spec, llama.links, ignored=("rotary_emb.inv_freq",), gguf="qwen2")
