"""Recurrent encoder-decoders: RNN, GRU and LSTM, with and without attention (A1)."""

from __future__ import annotations

from dataclasses import replace

import torch

from vantage.errors import BadInput
from vantage.model.recurrent.decoders import Carried
from vantage.model.recurrent.module import RecurrentModel, States
from vantage.model.recurrent.spec import CELLS, FEEDS, SCORES, RecurrentSpec

WIDEST = 2**20


def build_recurrent(spec: RecurrentSpec, *, seed: int = 0) -> RecurrentModel:
    """A model with fresh weights. The same seed gives the same weights; torch's own generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RecurrentModel(spec)


def parameters(spec: RecurrentSpec) -> int:
    """How many parameters a model has, without making it."""
    with torch.device("meta"):
        return sum(p.numel() for p in RecurrentModel(spec).parameters())


def same_size(spec: RecurrentSpec, reference: RecurrentSpec) -> RecurrentSpec:
    """``spec`` with the width at which it has as many parameters as ``reference``, as nearly as a width can."""
    wanted = parameters(reference)
    unit = 2 if spec.bidirectional else 1

    def sized(width: int) -> int:
        return parameters(replace(spec, width=width * unit))

    if wanted < sized(1):
        raise BadInput(f"{reference} has {wanted:,} parameters, and {spec} at the least width {sized(1):,}")
    low, high = 1, 2
    while sized(high) <= wanted:
        low, high = high, 2 * high
        if high > WIDEST:
            raise BadInput(f"{reference} has {wanted:,} parameters: {spec} would be wider than {WIDEST:,}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sized(middle) <= wanted else (low, middle)
    nearest = min((low, high), key=lambda width: abs(sized(width) - wanted))
    return replace(spec, width=nearest * unit)


__all__ = [
    "CELLS",
    "FEEDS",
    "SCORES",
    "Carried",
    "RecurrentModel",
    "RecurrentSpec",
    "States",
    "build_recurrent",
    "parameters",
    "same_size",
]
