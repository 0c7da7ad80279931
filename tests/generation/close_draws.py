"""Tokens that two devices chose from logits that differ by rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vantage.generation.sampling import Picker, Sampling, uniform
from vantage.model import Model

CLOSE = 1e-5  # of a probability


@torch.inference_mode()
def differ_by_rounding_alone(
    model: Model, prompt: Sequence[int], got: Sequence[int], want: Sequence[int], sampling: Sampling
) -> None:
    """Up to the first token that differs they are alike; there the draw falls on the edge between two tokens, or two
    tokens are so nearly equally likely that rounding exchanges their order. What follows may differ."""
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
    if at is None:
        return
    picker = Picker(sampling, prompt, vocab=model.spec.vocab)
    for token in want[:at]:
        picker.took(token)
    p = picker.distribution(model(torch.tensor([[*prompt, *want[:at]]]))[0, -1])
    ids = p.sort(descending=True, stable=True).indices
    first, second = sorted(int((ids == token).nonzero()) for token in (got[at], want[at]))
    number = uniform(picker.seed, 0, at)
    edges = p[ids].cumsum(0)[first:second]
    exchanged = float((p[got[at]] / p[want[at]] - 1).abs()) < 10 * CLOSE
    assert exchanged or bool(((edges - number).abs() < CLOSE).all()), (at, got[at], want[at])
