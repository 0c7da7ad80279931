"""How tensors must lie in memory for kernels that read 16 bytes at a time."""

from __future__ import annotations

from torch import Tensor


def is_aligned(x: Tensor) -> bool:
    """Whether the last dimension is dense and all others lie at multiples of 16 bytes."""
    numbers = 16 // x.element_size()
    return x.stride(3) == 1 and not any(n % numbers for n in (x.storage_offset(), *x.stride()[:3]))


def side_by_side(x: Tensor) -> Tensor:
    """A copy with the heads of a token side by side."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
