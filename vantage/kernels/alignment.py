"""How tensors must lie in memory for kernels that read 16 bytes at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def is_aligned(x: Tensor) -> bool:
    """Whether the last dimension is dense and all others lie at multiples of 16 bytes. torch's compiler does not know
    where a tensor begins: there, only its strides are looked at, those first that it knows as numbers."""
    numbers = 16 // x.element_size()
    begins = 0 if torch.compiler.is_compiling() else x.storage_offset()
    return x.stride(3) == 1 and not any(n % numbers for n in (begins, x.stride(2), x.stride(1), x.stride(0)))


def side_by_side(x: Tensor) -> Tensor:
    """A copy with the heads of a token side by side."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
