"""Zeros and copies of a cache's buffers on the calling thread alone.

torch shares out what has 32,768 numbers or more among its threads, and waits for all of them. Beside other busy
processes such a wait takes milliseconds, and a cache that grows has two buffers in every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = 32_000  # numbers, fewer than torch shares out


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu" or torch.compiler.is_compiling():
        return torch.zeros(shape, dtype=dtype, device=device)
    buffer = torch.empty(shape, dtype=dtype, device=device)
    for piece in buffer.view(-1).split(PIECE):
        piece.zero_()
    return buffer


def copy_places(to: Tensor, source: Tensor) -> None:
    """The places (the dimension before the last) of ``source`` are the first ones of ``to``."""
    places = source.shape[-2]
    first = to.narrow(-2, 0, places)
    each = source.numel() // max(places, 1)  # numbers of one place
    if source.device.type != "cpu" or torch.compiler.is_compiling() or each > PIECE or not each:
        first.copy_(source)
        return
    for mine, other in zip(first.split(PIECE // each, -2), source.split(PIECE // each, -2), strict=True):
        mine.copy_(other)
