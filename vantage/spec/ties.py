"""Numbers that are equal but for a rounding.

What is chosen by the highest score must not depend on how a pass was cut: the same sum, added up in another order,
differs in its last bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = {torch.float64: 36, torch.float32: 20}  # of 53 and 24


def without_last_bits(x: Tensor) -> Tensor:
    """x with fewer bits, so that numbers which differ by a rounding are equal. Infinite ones stay."""
    bits = BITS[x.dtype]
    mantissa, exponent = torch.frexp(x)
    return torch.where(x.isfinite(), torch.ldexp((mantissa * 2**bits).round(), exponent - bits), x)
