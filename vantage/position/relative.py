"""Sinusoids of a distance, without ever forming one per pair: what Transformer-XL and shifted positions share.

sin((i-j)w) = sin(iw) cos(jw) - cos(iw) sin(jw) and cos((i-j)w) = cos(iw) cos(jw) + sin(iw) sin(jw), so a
score that is a sum of sinusoids of i - j is one matrix product, for positions in any arrangement.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.position.angles import angles, frequencies, rows, wide
from vantage.spec.positions import Positions


def sinusoid_scores(
    sines_BHTk: Tensor, cosines_BHTk: Tensor, q_pos: Positions, k_pos: Positions, base: float, back: int = 0
) -> Tensor:
    """(B, H, T, S): the sum over k of sines·sin(δ w_k) + cosines·cos(δ w_k), where δ = i - j - back."""
    dtype = wide(sines_BHTk.dtype)
    dim = 2 * sines_BHTk.shape[-1]
    sin_i, cos_i = _waves(q_pos, dim, base, back, dtype)
    sin_j, cos_j = _waves(k_pos, dim, base, 0, dtype)
    a, b = sines_BHTk.to(dtype), cosines_BHTk.to(dtype)
    turned = torch.cat((a * sin_i + b * cos_i, b * sin_i - a * cos_i), dim=-1)
    return turned @ torch.cat((cos_j, sin_j), dim=-1).transpose(-1, -2)


def distance_waves(pos: Positions, highest: int, n: int, dim: int, base: float, dtype: torch.dtype) -> Tensor:
    """sin and then cos of the distances highest, highest - 1, …, n of them, (n, dim), once for all layers."""

    def make() -> Tensor:
        return waves(highest - torch.arange(n, device=pos.device), dim, base, dtype)

    return pos.once(("distance waves", highest, n, dim, base, dtype), make)


def waves(distances_n: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
    """Their sines and then cosines, (n, dim)."""
    angle = distances_n[:, None] * frequencies(dim, base, distances_n.device)
    return torch.cat((angle.sin().to(dtype), angle.cos().to(dtype)), -1)


def runs(q_pos: Positions, k_pos: Positions) -> bool:
    """Whether queries and keys stand one after another, so that their distances are known beforehand."""
    return q_pos.known.first is not None and k_pos.known.first is not None


def _waves(pos: Positions, dim: int, base: float, back: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """sin and cos of (pos - back)·w, (R, 1, T, dim / 2), once for all layers."""

    def make() -> tuple[Tensor, Tensor]:
        angle = angles(rows(pos) - back, frequencies(dim, base, pos.device))
        return angle.sin().to(dtype), angle.cos().to(dtype)

    return pos.once(("waves", dim, base, back, dtype), make)
