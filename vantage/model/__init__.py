"""The model built from a spec, and short ways to write a spec."""

from __future__ import annotations

import torch

from vantage.model.drawing import draw_weights
from vantage.model.recipes import decoder, encoder, encoder_decoder
from vantage.model.skeleton import empty_model, fit_buffers, no_weights, parameter_names
from vantage.model.transformer import Model
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Kernel


def build(spec: ModelSpec, *, seed: int = 0, kernel: str | Kernel = "auto") -> Model:
    """A model with new random weights. The same seed gives the same weights; torch's global generator is not used."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(spec, kernel=kernel)


__all__ = [
    "Model",
    "build",
    "decoder",
    "draw_weights",
    "empty_model",
    "encoder",
    "encoder_decoder",
    "fit_buffers",
    "no_weights",
    "parameter_names",
]
