"""P3: going on by k positions is one rotation, the same wherever one starts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.figures import Figure, Heat, Line, Lines
from vantage.functional import offset_matrix, sinusoid
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import max_difference
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

FITTED = 2000  # positions that R is found from
FAR = 1_000_000  # where it must hold as well
FOUND = 1e-8  # least squares loses more than a product does
EXACT = 1e-9
OFFSETS = 60  # in the second figure


def run(values: Values, progress: Progress) -> Result:
    dim, offset = int(values["dim"]), int(values["offset"])
    dim += dim % 2
    rotation = fitted(dim, offset)
    progress(0.3, "rotations for many offsets")
    near, far = _missed(rotation, dim, offset, FITTED), _missed(rotation, dim, offset, FAR)
    blocks = torch.block_diag(*(torch.ones(2, 2) for _ in range(dim // 2))).bool()
    eye = torch.eye(dim, dtype=rotation.dtype)
    angle = math.atan2(float(rotation[0, 1]), float(rotation[0, 0])) % (2 * math.pi)
    numbers = [
        compared(
            f"PE(t + {offset}) − R·PE(t) at the {FITTED:,} positions after those of the fit", near, 0.0, within=FOUND
        ),
        compared("and from position 1,000,000 on", far, 0.0, within=FOUND),
        compared(
            "R outside its 2 × 2 blocks", float(rotation[~blocks].abs().max()) if dim > 2 else 0.0, 0.0, within=FOUND
        ),
        compared("RᵀR − 1: a rotation", max_difference(rotation.T @ rotation, eye), 0.0, within=FOUND),
        compared("the first block turns by (radians)", angle, offset % (2 * math.pi), within=FOUND),
        compared(
            "R found against R built from the frequencies",
            max_difference(rotation, offset_matrix(offset, dim)),
            0.0,
            within=FOUND,
        ),
        compared(
            "R(k)·R(k) − R(2k)",
            max_difference(rotation @ rotation, offset_matrix(2 * offset, dim)),
            0.0,
            within=EXACT * 100,
        ),
    ]
    words = TEXT.conclusion(fitted=FITTED)
    figures = [_matrix(rotation, offset), _turning(dim, progress)]
    return conclude(words, numbers, figures)


def fitted(dim: int, offset: int) -> Tensor:
    """(d, d): the linear map that takes PE(t) to PE(t + offset) best, over the first positions of the real table."""
    table = sinusoid(torch.arange(FITTED + offset), dim)
    return torch.linalg.lstsq(table[:FITTED], table[offset:]).solution.T


def _missed(matrix: Tensor, dim: int, offset: int, start: int) -> float:
    pos = torch.arange(start, start + FITTED)
    return max_difference(sinusoid(pos, dim) @ matrix.T, sinusoid(pos + offset, dim))


def _matrix(rotation: Tensor, offset: int) -> Figure:
    ticks = tuple(f"{wave} {i}" for i in range(len(rotation) // 2) for wave in ("sin", "cos"))
    clean = torch.where(rotation.abs() < FOUND, torch.zeros_like(rotation), rotation)
    heat = Heat(
        f"R({offset}), as found",
        "of PE(t)",
        f"of PE(t + {offset})",
        clean.tolist(),
        ticks,
        ticks,
        True,
        len(rotation) <= 8,
    )
    return Figure("rotation", TEXT.caption("rotation"), (heat,))


def _turning(dim: int, progress: Progress) -> Figure:
    matrices = []
    for k in range(OFFSETS):
        matrices.append(fitted(dim, k))
        progress(0.3 + 0.7 * (k + 1) / OFFSETS, "rotations for many offsets")
    lines = tuple(
        Line(f"pair {i}", list(range(OFFSETS)), [float(m[2 * i, 2 * i]) for m in matrices])
        for i in range(min(3, dim // 2))
    )
    return Figure(
        "offsets", TEXT.caption("offsets"), (Lines("the diagonal of R(k)", "offset k", "cos of the angle", lines),)
    )


STUDY = TEXT.study(
    "P3",
    run,
    (
        TEXT.parameter("dim", 4, 2, 12),
        TEXT.parameter("offset", 5, 1, 1000),
    ),
    seconds=1.0,
)
