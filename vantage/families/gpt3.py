"""GPT-3: GPT-2 whose layers alternate between dense and locally banded attention (Brown et al. 2020, section 2.1).

Its weights were never published. A checkpoint is GPT-2's in names and config, with ``model_type`` "gpt3" and
``attention_band``: how many keys a query of every second layer sees, itself included.
"""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.families import gpt2
from vantage.families.family import Family
from vantage.spec.masks import Window
from vantage.spec.model import ModelSpec


def spec(c: Config) -> ModelSpec:
    dense = gpt2.spec(c)
    band = Window(c.whole("attention_band", low=1))
    layers = (replace(layer, mask=layer.mask & band) if i % 2 else layer for i, layer in enumerate(dense.layers))
    return replace(dense, layers=tuple(layers))


FAMILY = Family("gpt3", spec, gpt2.links, prefix="transformer.")
