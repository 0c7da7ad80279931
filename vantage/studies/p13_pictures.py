"""P13: S3's pictures of the sinusoidal encoding, and of ALiBi's bias."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.figures import Figure, Heat, Line, Lines
from vantage.functional import alibi_bias, sinusoid
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import F64, ROUNDING, max_difference
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

DIM, POSITIONS = 128, 100  # S3's figure
SHOWN, DIMENSIONS = 50, 64
WAVES = (0, 1, 10, 20, 50)
MEASURED = 1e-9
HEADS = 8


def run(values: Values, progress: Progress) -> Result:
    dim, count = int(values["dim"]), int(values["positions"])
    dim += dim % 2
    table = sinusoid(torch.arange(count), dim)
    similar = F.normalize(table, dim=-1) @ F.normalize(table, dim=-1).T
    waves = [w for w in WAVES if w < dim]
    frequencies = {w: frequency(w, dim) for w in waves}
    toeplitz = max_difference(similar[1:, 1:], similar[:-1, :-1])
    numbers = [
        judged(
            "the table: positions × dimensions",
            f"{table.shape[0]} × {table.shape[1]}",
            tuple(table.shape) == (count, dim),
            f"{POSITIONS} × {DIM}" if (dim, count) == (DIM, POSITIONS) else None,
        ),
        compared("cosine similarity along a diagonal: largest change", toeplitz, 0.0, within=ROUNDING),
        judged(
            "slower with each pair: frequencies of the even dimensions shown fall",
            _falls(frequencies),
            _falls(frequencies) == "yes",
        ),
        *(
            compared(
                f"dimension {w}: radians a position, measured",
                frequencies[w],
                10000 ** (-(w - w % 2) / dim),
                within=MEASURED,
            )
            for w in waves
        ),
    ]
    slips = [
        judged(
            "dimensions 0 and 1: frequencies",
            f"{frequencies[0]:.6f} and {frequencies[1]:.6f}",
            abs(frequencies[0] - frequencies[1]) > MEASURED,
            "different",
        )
    ]
    words = TEXT.conclusion(dim=dim, count=count, shown=SHOWN)
    progress(1.0, "done")
    return conclude(words, numbers, [_map(table), _similarity(similar), _waves(table, waves), _alibi()], slips)


def frequency(dimension: int, dim: int) -> float:
    """Measured from the wave itself: a wave obeys x(t+1) + x(t−1) = 2·cos(ω)·x(t), by least squares over t."""
    wave = sinusoid(torch.arange(20_000), dim)[:, dimension]
    middle, sides = wave[1:-1], wave[2:] + wave[:-2]
    # 2·sin²(ω/2) = 1 − cos ω keeps the digits of a slow wave
    fall = float(((2 * middle - sides) * middle).sum() / (2 * middle * middle).sum())
    return 2 * math.asin(math.sqrt(max(fall, 0.0) / 2))


def _falls(frequencies: dict[int, float]) -> str:
    even = [frequencies[w] for w in frequencies if w % 2 == 0]
    return "yes" if all(a > b for a, b in itertools.pairwise(even)) else "no"


def _map(table: Tensor) -> Figure:
    heat = Heat("sinusoidal encoding", "dimension", "position", table[:SHOWN, :DIMENSIONS].tolist(), diverging=True)
    return Figure("map", TEXT.caption("map"), (heat,))


def _similarity(similar: Tensor) -> Figure:
    heat = Heat("cosine similarity of positions", "position", "position", similar[:SHOWN, :SHOWN].tolist())
    return Figure("similarity", TEXT.caption("similarity"), (heat,))


def _waves(table: Tensor, waves: list[int]) -> Figure:
    lines = tuple(
        Line(f"dim {w}", list(range(SHOWN)), table[:SHOWN, w].tolist(), look="dashed" if w == 1 else "solid")
        for w in waves
    )
    return Figure("waves", TEXT.caption("waves"), (Lines("selected dimensions", "position", "value", lines),))


def _alibi() -> Figure:
    bias = alibi_bias(HEADS, SHOWN, F64)
    distances = list(range(SHOWN))
    lines = tuple(Line(f"head {h}", distances, bias[h - 1, -1].flip(-1).tolist()) for h in (1, 2, 3, 4, 8))
    panels = (
        Heat(f"ALiBi, head 1 of {HEADS}", "key j", "query i", bias[0].tolist()),
        Lines("its heads", "distance", "bias", lines),
    )
    return Figure("alibi", TEXT.caption("alibi"), panels)


STUDY = TEXT.study(
    "P13",
    run,
    (
        TEXT.parameter("dim", DIM, 4, 512),
        TEXT.parameter("positions", POSITIONS, SHOWN, 1000),
    ),
    seconds=0.5,
)
