# vantage exercise P8: rotary positions
import torch


def apply_rope(x, pos, base):
    """x (..., T, d) turned to the positions pos (T,)"""
    d = x.shape[-1]
    rate = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = pos[:, None].double() * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
