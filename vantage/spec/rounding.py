"""Whole numbers rounded up. Triton has the same for its kernels as well: those take the host 5 µs a call, and a launch
has a dozen of them."""

from __future__ import annotations


def ceil_div(n: int, step: int) -> int:
    """How many steps reach n."""
    return -(-n // step)


def next_power_of_2(n: int) -> int:
    """The least power of two that is not below n, which is at least 1."""
    return 1 << (n - 1).bit_length()
