"""P8: rotary positions, with positions as data."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.functional import apply_rope
from vantage.position.rope import Rope
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import draw
from vantage.studies.exercises.words import Mistake, unlike

TASK = """\
Write apply_rope(x, pos, base). x has the shape (…, T, d) with d even, pos is a tensor (T,) with the position of
each of the T tokens, which need not start at 0 nor be in order. Pair k, the numbers at 2k and 2k + 1, of a
token at position t is turned by the angle t · base^(−2k/d): (a, b) becomes (a cos − b sin, a sin + b cos).

Return a new tensor of the same shape and type."""

STARTER = """\
# vantage exercise P8: rotary positions
import torch


def apply_rope(x, pos, base):
    \"\"\"x (..., T, d) turned to the positions pos (T,)\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise P8: rotary positions
import torch


def apply_rope(x, pos, base):
    \"\"\"x (..., T, d) turned to the positions pos (T,)\"\"\"
    d = x.shape[-1]
    rate = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = pos[:, None].double() * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
"""

WORDS = """\
Every pair turns at its own rate, the first by one radian for each position. Because both query and key are
turned, only the difference of their positions is left in the dot product. The positions are an argument: a
function that counts from 0 by itself is right for a whole sequence and wrong for every step with a cache, where
the one new token stands at t and would be turned as if it stood at 0. (One document's code does that.) The
angles are worked out in float64: at position 100,000 float32 has hardly a decimal left in them."""


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
        (
            apply_rope(x, at, adjacent),
            f"your rotation ignores the positions: the token at {int(pos[off])} is turned as if "
            f"it stood at {off}. Use pos; with a cache the tokens do not start at 0",
        ),
        (
            apply_rope(x, pos - pos[0], adjacent),
            f"your rotation starts from 0 at the first token: the token at "
            f"{int(pos[0])} is turned as if it stood at 0. Use pos as it is",
        ),
        (
            apply_rope(x, pos, halves),
            "this pairs number k with number k + d/2, as other libraries do; here the pairs are "
            "neighbours, 2k and 2k + 1",
        ),
        (apply_rope(x, -pos, adjacent), "it turns the wrong way round: (a, b) becomes (a cos − b sin, a sin + b cos)"),
        (_turn(x, t * base ** (-k / 2 / d)), "the exponent is −k/d for pair k; it is −2k/d"),
        (_turn(x, t * base ** (k / d)), "the exponent has the wrong sign: later pairs turn slower, base^(−2k/d)"),
        (_turn(x, torch.deg2rad(t * base ** (-k / d))), "the angles are taken as degrees; they are radians"),
        (
            _turn(x, t * torch.ones_like(k)),
            "all pairs turn at the same rate; pair k turns by base^(−2k/d) per position",
        ),
        (apply_rope(x, pos, Rope(10000.0, pairing="adjacent")), f"the base is always 10000; it was {base:g} here"),
        (apply_rope(x, pos + 1, adjacent), "the positions are counted from 1; use pos as it is"),
        (
            torch.cat((right[..., 0::2], right[..., 1::2]), -1),
            "the turned pairs are put back as halves (torch.cat); pair k "
            "belongs at 2k and 2k + 1 again (torch.stack and flatten)",
        ),
    ]


def _check(ask: Ask, x: Tensor, pos: Tensor, base: float, what: str, tolerance: float = 1e-4) -> str | None:
    wanted = apply_rope(x, pos, Rope(base, pairing="adjacent"))
    got = ask.call("apply_rope", x, pos, base)
    return unlike(got, wanted, what, _mistakes(x, pos, base), tolerance=tolerance)


def from_zero(ask: Ask) -> str | None:
    for seed, (shape, base) in enumerate((((5, 4), 10000.0), ((2, 3, 6, 8), 10000.0), ((4, 2), 100.0))):
        words = _check(ask, draw(*shape, seed=seed), torch.arange(shape[-2]), base, f"apply_rope of {shape}")
        if words is not None:
            return words
    return None


def from_elsewhere(ask: Ask) -> str | None:
    for seed, pos in enumerate(([5], [7, 8, 9], [3, 0, 11, 11], [100, 50])):
        x = draw(2, len(pos), 8, seed=seed)
        words = _check(ask, x, torch.tensor(pos), 10000.0, f"apply_rope at the positions {pos}")
        if words is not None:
            return words
    return None


def bases(ask: Ask) -> str | None:
    x = draw(3, 6, seed=4)
    return next(
        (
            w
            for base in (500000.0, 10.0)
            if (w := _check(ask, x, torch.tensor([2, 5, 6]), base, f"apply_rope with base {base:g}"))
        ),
        None,
    )


def far(ask: Ask) -> str | None:
    x, pos = draw(2, 8, seed=5, dtype=torch.float64), torch.tensor([100_000, 131_071])
    words = _check(ask, x, pos, 10000.0, "apply_rope far out (position 100,000, float64)", 1e-6)
    if words is None or not words.startswith("apply_rope far"):
        return words
    return f"{words}. Work the angles out in float64: float32 has no decimals left at such positions"


def shift(ask: Ask) -> str | None:
    """⟨R(m)x, R(n)y⟩ depends on m − n alone; the norm stays."""
    x, y = draw(1, 8, seed=6, dtype=torch.float64), draw(1, 8, seed=7, dtype=torch.float64)
    products = []
    for m, n in ((3, 1), (13, 11), (52, 50)):
        turned = ask.call("apply_rope", x, torch.tensor([m]), 10000.0)
        other = ask.call("apply_rope", y, torch.tensor([n]), 10000.0)
        if not isinstance(turned, Tensor) or turned.shape != x.shape:
            return "x turned has another shape than x"
        if abs(float(turned.norm() - x.norm())) > 1e-3:
            return (
                f"the length of x changes from {float(x.norm()):.4f} to {float(turned.norm()):.4f}: a rotation keeps it"
            )
        products.append(float((turned * other).sum()))
    if max(products) - min(products) > 1e-3:
        told = ", ".join(f"{p:.4f}" for p in products)
        return f"the dot products of pairs two positions apart should all be equal, and they are {told}"
    return None


EXERCISE = Exercise(
    tag="P8",
    title="Rotary positions",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("apply_rope",),
    checks=(
        ("a sequence from 0", from_zero),
        ("positions from elsewhere", from_elsewhere),
        ("other bases", bases),
        ("far out", far),
        ("lengths stay, and only distance counts", shift),
    ),
)
