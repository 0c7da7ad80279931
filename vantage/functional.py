"""Formulas of the course material as plain functions, computed by the library's own parts."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.position.alibi import alibi_bias
from vantage.position.alibi import alibi_slopes as _slopes
from vantage.position.rope import Rope, Rotation
from vantage.position.sinusoidal import sinusoid
from vantage.position.t5 import t5_bucket
from vantage.spec.positions import Positions

__all__ = ["alibi_bias", "alibi_slopes", "apply_rope", "offset_matrix", "sinusoid", "t5_bucket"]


def alibi_slopes(heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(H,): the slopes of the paper, for any number of heads (P10)."""
    return torch.tensor(_slopes(heads), dtype=dtype)


def apply_rope(x: Tensor, pos: Tensor, rope: Rope = Rope(), *, length: int | None = None) -> Tensor:
    """Turn x (…, T, d) to the positions (T,), or x (B, H, T, d) to the positions (B, T) of its rows (P8).

    ``length`` is the length of the context, for frequency rules that depend on it.
    """
    if x.shape[-2] != pos.shape[-1] or pos.dim() > 2 or (pos.dim() == 2 and (x.dim(), x.shape[0]) != (4, len(pos))):
        raise BadInput(
            f"x {tuple(x.shape)} and positions {tuple(pos.shape)} do not fit: "
            "give positions (T,) for x (…, T, d), or (B, T) for x (B, H, T, d)"
        )
    rotation = Rotation(rope, x.shape[-1])
    at = Positions.of(pos).declare(length)
    flat = x if pos.dim() == 2 else x.reshape(1, -1, *x.shape[-2:])
    return rotation.query(flat, at).reshape(x.shape)


def offset_matrix(offset: int, dim: int, base: float = 10000.0) -> Tensor:
    """(d, d): the rotation R with sinusoid(t + offset) = R · sinusoid(t) for every t (P3)."""
    # a sinusoid's pair is (sin, cos): going on by an offset turns it the other way round than RoPE turns (x, y)
    back = torch.full((dim,), -offset)
    return apply_rope(torch.eye(dim, dtype=torch.float64), back, Rope(base, pairing="adjacent")).T
