"""What the trigonometric encodings share: frequencies, angles, and what the host knows of the positions."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.spec.positions import Positions


def precise(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device has none. At position 100,000 a float32 angle is off by 0.004."""
    return torch.float32 if device.type == "mps" else torch.float64


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: where half precision would lose a distance or a sum."""
    return torch.promote_types(dtype, torch.float32)


def frequencies(dim: int, base: float, device: torch.device | str | None = None) -> Tensor:
    """base^(-2k/dim) for k = 0, 1, …, one for each pair of dimensions (an odd one out has its own)."""
    device = torch.device("cpu" if device is None else device)
    return base ** (-torch.arange(0, dim, 2, device=device, dtype=precise(device)) / dim)


def rows(pos: Positions) -> Tensor:
    """(R, T): one row where the host knows that all rows are the same."""
    return pos.pos[:1] if pos.known.same_rows else pos.pos


def angles(pos_RT: Tensor, freq_k: Tensor) -> Tensor:
    """(R, 1, T, k): position times frequency, ready to meet (B, H, T, d)."""
    return pos_RT[:, None, :, None].to(freq_k.dtype) * freq_k


FEW, PIECE = 2048, 64  # angles


def cos_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    """On a CPU, of few angles by the calling thread alone: torch's MKL gives a hundred of them to several threads, and
    those that are done spin for 7 ms, on a core that somebody else may want. The bits are the same."""
    if angle.device.type != "cpu" or not PIECE < angle.numel() <= FEW or torch.compiler.is_compiling():
        return angle.cos(), angle.sin()
    pieces = angle.reshape(-1).split(PIECE)
    cos, sin = torch.cat([piece.cos() for piece in pieces]), torch.cat([piece.sin() for piece in pieces])
    return cos.view(angle.shape), sin.view(angle.shape)


def highest(pos: Positions) -> int | None:
    """The highest position in use, as far as the host knows; -1 if there is none; ``None``: not known."""
    if pos.known.pos is not None:
        return pos.known.pos[1]
    counts = pos.known.counts
    nothing = pos.pos.numel() == 0 or (counts is not None and not any(counts))
    return -1 if nothing else None


def bound(pos: Positions, who: str) -> int:
    """The highest position that can occur: known, or else from the declared length."""
    top = highest(pos)
    if top is not None:
        return top
    if pos.length is not None:
        return pos.length - 1
    raise BadInput(
        f"{who} must know the highest position, and these lie on {pos.device}, from where nothing is read back: "
        "say Positions.of(..., bounds=(lowest, highest)), or declare a length"
    )


def at_most(pos: Positions, who: str, most: int) -> int:
    """The highest position, to be compared with the last that a part has; or what it cannot exceed, where that fits."""
    limit = pos.known.limit
    return limit if highest(pos) is None and limit is not None and limit <= most else bound(pos, who)


def need_whole(pos: Positions, who: str) -> None:
    """Refuse fractional positions where there is one entry per whole number."""
    if pos.pos.is_floating_point():
        raise BadInput(f"{who} has entries for whole positions only, got {pos.pos.dtype}: round them, or use RoPE")


def need_even(dim: int, who: str) -> None:
    """Refuse a width that does not split into pairs."""
    if dim == 0 or dim % 2:
        raise BadInput(f"{who} works on pairs of dimensions, got {dim}: give an even number, 2 or more")
