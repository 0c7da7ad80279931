# vantage exercise P8: rotary positions
import torch


def apply_rope(x, pos, base):
    """x (..., T, d) turned to the positions pos (T,)"""
    raise NotImplementedError
