"""P8: rotary positions, with positions as data."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.functional import apply_rope
from vantage.position.rope import Rope
from vantage.studies.exercises.differences import Mistake, compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import random_normal
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _turn(x: Tensor, angle: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def _mistakes(x: Tensor, pos: Tensor, base: float) -> list[Mistake]:
    d, at = x.shape[-1], torch.arange(len(pos))
    halves, adjacent = Rope(base), Rope(base, pairing="adjacent")
    k = torch.arange(0, d, 2, dtype=torch.float64)
    off = int((pos != at).nonzero()[0]) if bool((pos != at).any()) else 0
    t = pos[:, None].double()
    right = apply_rope(x, pos, adjacent)
    return [
        (apply_rope(x, at, adjacent), TEXT.feedback("positions ignored", position=int(pos[off]), taken_for=off)),
        (apply_rope(x, pos - pos[0], adjacent), TEXT.feedback("starts from 0", position=int(pos[0]))),
        (apply_rope(x, pos, halves), TEXT.feedback("halves")),
        (apply_rope(x, -pos, adjacent), TEXT.feedback("wrong way round")),
        (_turn(x, t * base ** (-k / 2 / d)), TEXT.feedback("half the exponent")),
        (_turn(x, t * base ** (k / d)), TEXT.feedback("sign of the exponent")),
        (_turn(x, torch.deg2rad(t * base ** (-k / d))), TEXT.feedback("degrees")),
        (_turn(x, t * torch.ones_like(k)), TEXT.feedback("one rate")),
        (apply_rope(x, pos, Rope(10000.0, pairing="adjacent")), TEXT.feedback("base ignored", base=base)),
        (apply_rope(x, pos + 1, adjacent), TEXT.feedback("counted from 1")),
        (torch.cat((right[..., 0::2], right[..., 1::2]), -1), TEXT.feedback("put back as halves")),
    ]


def _check(student: StudentCode, x: Tensor, pos: Tensor, base: float, what: str, tolerance: float = 1e-4) -> str | None:
    wanted = apply_rope(x, pos, Rope(base, pairing="adjacent"))
    got = student.call("apply_rope", x, pos, base)
    return compare_tensors(got, wanted, what, _mistakes(x, pos, base), tolerance=tolerance)


def from_zero(student: StudentCode) -> str | None:
    for seed, (shape, base) in enumerate((((5, 4), 10000.0), ((2, 3, 6, 8), 10000.0), ((4, 2), 100.0))):
        words = _check(
            student, random_normal(*shape, seed=seed), torch.arange(shape[-2]), base, f"apply_rope of {shape}"
        )
        if words is not None:
            return words
    return None


def from_elsewhere(student: StudentCode) -> str | None:
    for seed, pos in enumerate(([5], [7, 8, 9], [3, 0, 11, 11], [100, 50])):
        x = random_normal(2, len(pos), 8, seed=seed)
        words = _check(student, x, torch.tensor(pos), 10000.0, f"apply_rope at the positions {pos}")
        if words is not None:
            return words
    return None


def bases(student: StudentCode) -> str | None:
    x = random_normal(3, 6, seed=4)
    return next(
        (
            w
            for base in (500000.0, 10.0)
            if (w := _check(student, x, torch.tensor([2, 5, 6]), base, f"apply_rope with base {base:g}"))
        ),
        None,
    )


def far(student: StudentCode) -> str | None:
    x, pos = random_normal(2, 8, seed=5, dtype=torch.float64), torch.tensor([100_000, 131_071])
    words = _check(student, x, pos, 10000.0, "apply_rope far out (position 100,000, float64)", 1e-6)
    if words is None or not words.startswith("apply_rope far"):
        return words
    return TEXT.feedback("precision", difference=words)


def shift(student: StudentCode) -> str | None:
    """⟨R(m)x, R(n)y⟩ depends on m − n alone; the norm stays."""
    x, y = random_normal(1, 8, seed=6, dtype=torch.float64), random_normal(1, 8, seed=7, dtype=torch.float64)
    products = []
    for m, n in ((3, 1), (13, 11), (52, 50)):
        turned = student.call("apply_rope", x, torch.tensor([m]), 10000.0)
        other = student.call("apply_rope", y, torch.tensor([n]), 10000.0)
        if not isinstance(turned, Tensor) or turned.shape != x.shape:
            return TEXT.feedback("another shape")
        if abs(float(turned.norm() - x.norm())) > 1e-3:
            return TEXT.feedback("length changes", before=float(x.norm()), after=float(turned.norm()))
        products.append(float((turned * other).sum()))
    if max(products) - min(products) > 1e-3:
        numbers = ", ".join(f"{p:.4f}" for p in products)
        return TEXT.feedback("distance", products=numbers)
    return None


EXERCISE = TEXT.exercise(
    "P8",
    ("apply_rope",),
    (
        ("a sequence from 0", from_zero),
        ("positions from elsewhere", from_elsewhere),
        ("other bases", bases),
        ("far out", far),
        ("lengths stay, and only distance counts", shift),
    ),
)
