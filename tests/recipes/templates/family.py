"""Sparrow: LLaMA whose first layers see a window only."""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.families import llama, llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    layer = Layer(llama_layout.attention(c), llama_layout.feed_forward(c), norm, qk=(rope(c),))
    near = replace(layer, mask=llama_layout.mask(llama_layout.window(c)))
    first = c.whole("window_layers", 0)
    return llama_layout.model(c, [near if i < first else layer for i in range(llama_layout.count(c))], norm)


FAMILY = Family("sparrow", spec, llama.links)
