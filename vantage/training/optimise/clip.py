"""The global norm of gradients, and clipping by it (Pascanu et al. 2013)."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.training.optimise.tensors import whole


def clip(parameters: Iterable[Tensor], most: float | None) -> Tensor:
    """Scale all gradients so that their norm together is at most ``most``; returns the norm that they had.

    ``None`` only measures. A norm that is not finite is returned as it is, with the gradients no longer of use:
    look at it before the step. Sharded gradients count whole.
    """
    with_gradients = [p for p in parameters if p.grad is not None]
    if most is None:
        return whole(torch.nn.utils.get_total_norm([p.grad for p in with_gradients if p.grad is not None]))
    if not (isfinite(most) and most > 0):
        raise BadInput(f"a largest norm of {most}: give a positive number, or None to clip nothing")
    return whole(torch.nn.utils.clip_grad_norm_(with_gradients, most))
