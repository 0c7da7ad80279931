"""Qwen 2 and 2.5: LLaMA with biases on q, k and v, and a window on the upper layers if it is switched on."""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.families import llama, pieces
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.spec.masks import Mask
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    layer = Layer(pieces.attention(c, bias=True), pieces.feed_forward(c), norm, qk=(rope(c),))
    return pieces.model(c, [replace(layer, mask=mask) for mask in masks(c)], norm)


def masks(c: Config) -> tuple[Mask, ...]:
    """Sliding from layer ``max_window_layers`` up, unless ``layer_types`` says it layer by layer."""
    width = pieces.window(c, used=c.flag("use_sliding_window", False), silent=4096)
    below = c.whole("max_window_layers", 28)
    slides = [width is not None and i >= below for i in range(pieces.count(c))]
    return pieces.masks(pieces.layer_types(c, [pieces.SLIDING if s else pieces.FULL for s in slides]), width)


FAMILY = Family("qwen2", spec, llama.links, ignored=("rotary_emb.inv_freq",))
