"""The memory of a cache's buffers: how much, zeros, copies.

On a processor the calling thread works alone. torch shares out what has 32,768 numbers or more among its threads, and
waits for all of them. Beside other busy processes such a wait takes milliseconds, and a cache that grows has two
buffers in every layer.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

PIECE = 32_000  # numbers, fewer than torch shares out
LAZY = 1 << 20  # bytes from which on a buffer is memory of the system's own
FOLLOWS = 64  # tokens that mostly follow a prompt


def grown(size: int, needed: int, least: int) -> int:
    """How large a buffer of this size becomes so that it holds so much. At first it leaves room for what follows a
    prompt, for which it would be doubled and copied at once: a quarter or ``least``, unless that is 0. Later it
    doubles."""
    if size or not least:
        return max(2 * size, needed)
    return needed + max(least, needed // 4)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu" or torch.compiler.is_compiling():
        return torch.zeros(shape, dtype=dtype, device=device)
    count = torch.Size(shape).numel()
    if count * dtype.itemsize >= LAZY and hasattr(mmap, "MAP_PRIVATE"):
        # new pages are zeros, and none is there before it is written to
        try:
            pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as e:  # as torch calls it
            raise RuntimeError(f"can't allocate memory: a cache's buffer of {count * dtype.itemsize:,} bytes") from e
        return torch.frombuffer(pages, dtype=dtype).view(shape)
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
