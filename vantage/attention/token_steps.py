"""Token mixers with a state, one token after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vantage.spec.positions import Positions


def over_tokens(
    step: Callable[[int, Tensor], tuple[Tensor, Tensor]], state: Tensor, pos: Positions, columns: tuple[int, ...]
) -> tuple[Tensor, list[Tensor]]:
    """The outputs (B, T, …) of ``step(t, state)``, which gives the new state and an output, and the states after each
    of these columns. A document begins with an empty state; padding leaves it as it is."""
    ends = (...,) + (None,) * (state.dim() - 1)
    filled = pos.filled[ends]
    begins = None if pos.segment is None else (pos.order == pos.segment)[ends]
    outputs, kept = [], []
    for t in range(pos.shape[1]):
        new, out = step(t, state if begins is None else torch.where(begins[:, t], 0, state))
        outputs.append(out)
        state = torch.where(filled[:, t], new, state)
        if t in columns:
            kept.append(state)
    return torch.stack(outputs, 1), kept
