"""P2: the sinusoidal encoding, its worked numbers, its two layouts, and an exponent that is wrong in print."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.figures import Figure, Heat, Line, Lines
from vantage.position import Sinusoidal, sinusoid
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import F64, ROUNDING, max_difference
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

WORKED = ((0.0, 1.0, 0.0, 1.0), (0.84147, 0.54030, 0.00999983, 0.99995))  # PE(0) and PE(1) at d = 4
PRINTED = 5e-6  # the document prints five digits
DROPPED = 0.1


def run(values: Values, progress: Progress) -> Result:
    dim, count, base = int(values["dim"]), int(values["positions"]), float(values["base"])
    dim += dim % 2
    pos = torch.arange(count)
    interleaved, halves = (sinusoid(pos, dim, base, layout) for layout in ("interleaved", "halves"))
    pairs = interleaved.unflatten(-1, (-1, 2))
    slipped = _slipped(pos, dim, base)
    norms = {"2i/d": pairs.square().sum((-1, -2)).sqrt(), "(2i+1)/d": slipped.square().sum((-1, -2)).sqrt()}
    numbers = [
        *_worked(),
        compared("PE(1)[3] with the exponent 2i/d", float(sinusoid(torch.tensor(1), 4)[3]), 0.99995, within=PRINTED),
        compared(
            "the two layouts, one reordered: difference",
            max_difference(torch.cat((pairs[..., 0], pairs[..., 1]), -1), halves),
            0.0,
        ),
        compared(
            "sin² + cos² of a pair: furthest from 1",
            max_difference(pairs.square().sum(-1), torch.ones(())),
            0.0,
            within=ROUNDING,
        ),
        *_dropout(),
    ]
    slips = [
        compared(
            "PE(1)[3] with S2's exponent (2i+1)/d",
            float(_slipped(torch.tensor(1), 4, 10000.0)[1, 1]),
            0.99995,
            within=PRINTED,
        ),
        compared(
            "sin² + cos² with S2's exponent: furthest from 1",
            max_difference(slipped.square().sum(-1), torch.ones(())),
            0.0,
            within=ROUNDING,
        ),
    ]
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_layouts(interleaved, halves), _norms(norms)], slips)


def _worked() -> list[Number]:
    table = sinusoid(torch.arange(2), 4)
    return [
        compared(f"PE({t})[{i}] at d = 4", float(table[t, i]), WORKED[t][i], within=PRINTED)
        for t in range(2)
        for i in range(4)
        if (t, i) != (1, 3)
    ]


def _slipped(pos: Tensor, dim: int, base: float) -> Tensor:
    """(…, d/2, 2): S2's formula. A table twice as wide has all exponents k/d; sines take the even, cosines the odd."""
    sines, cosines = sinusoid(pos, 2 * dim, base, "halves").chunk(2, dim=-1)
    return torch.stack((sines[..., 0::2], cosines[..., 1::2]), dim=-1)


def _dropout() -> list[Number]:
    """S3 drops a tenth of the sum, in training only."""
    width, count = 64, 500
    part = Sinusoidal(dropout=DROPPED).build(Shape(width, 1, 1, width, width, width))
    x, pos = torch.full((1, count, width), 3.0, dtype=F64), Positions.arange(1, count)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        share = float((part.train()(x, pos) == 0).double().mean())
    still = max_difference(part.eval()(x, pos), x + sinusoid(torch.arange(count), width))
    spread = 4 * math.sqrt(DROPPED * (1 - DROPPED) / x.numel())  # four standard deviations
    return [
        compared("dropout after the sum, in training: the share that is 0", share, DROPPED, within=spread),
        compared("and when it runs: difference from x + PE", still, 0.0),
    ]


def _layouts(interleaved: Tensor, halves: Tensor) -> Figure:
    panels = tuple(
        Heat(title, "dimension", "position", table[:40].tolist(), diverging=True)
        for title, table in (("interleaved", interleaved), ("sines, then cosines", halves))
    )
    return Figure("layouts", TEXT.caption("layouts"), panels)


def _norms(norms: dict[str, Tensor]) -> Figure:
    lines = tuple(
        Line(name, list(range(len(norm))), norm.tolist(), look=look)
        for (name, norm), look in zip(norms.items(), ("solid", "dashed"), strict=True)
    )
    return Figure("length", TEXT.caption("length"), (Lines("length of PE(t)", "position t", "‖PE(t)‖", lines),))


STUDY = TEXT.study(
    "P2",
    run,
    (
        TEXT.parameter("dim", 16, 4, 256),
        TEXT.parameter("positions", 200, 50, 5000),
        TEXT.parameter("base", 10000.0, 2.0, 1e7),
    ),
    seconds=0.2,
)
