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
from vantage.studies.study import Parameter, Progress, Result, Study, Values

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
    found = {w: frequency(w, dim) for w in waves}
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
            _falls(found),
            _falls(found) == "yes",
        ),
        *(
            compared(
                f"dimension {w}: radians a position, measured", found[w], 10000 ** (-(w - w % 2) / dim), within=MEASURED
            )
            for w in waves
        ),
    ]
    slips = [
        judged(
            "dimensions 0 and 1: frequencies",
            f"{found[0]:.6f} and {found[1]:.6f}",
            abs(found[0] - found[1]) > MEASURED,
            "different",
        )
    ]
    words = (
        f"The pictures are S3's, here with d = {dim} and {count} positions ({SHOWN} shown). Its sketch of the waves "
        "gives dimensions 0 and 1 different frequencies; they are the sine and the cosine of one."
    )
    progress(1.0, "done")
    return conclude(words, numbers, [_map(table), _similarity(similar), _waves(table, waves), _alibi()], slips)


def frequency(dimension: int, dim: int) -> float:
    """Measured from the wave itself: a wave obeys x(t+1) + x(t−1) = 2·cos(ω)·x(t), by least squares over t."""
    wave = sinusoid(torch.arange(20_000), dim)[:, dimension]
    middle, sides = wave[1:-1], wave[2:] + wave[:-2]
    # 2·sin²(ω/2) = 1 − cos ω keeps the digits of a slow wave
    fall = float(((2 * middle - sides) * middle).sum() / (2 * middle * middle).sum())
    return 2 * math.asin(math.sqrt(max(fall, 0.0) / 2))


def _falls(found: dict[int, float]) -> str:
    even = [found[w] for w in found if w % 2 == 0]
    return "yes" if all(a > b for a, b in itertools.pairwise(even)) else "no"


def _map(table: Tensor) -> Figure:
    heat = Heat("sinusoidal encoding", "dimension", "position", table[:SHOWN, :DIMENSIONS].tolist(), diverging=True)
    caption = "On the left the fast waves, which change from position to position; to the right they grow slower."
    return Figure("map", caption, (heat,))


def _similarity(similar: Tensor) -> Figure:
    heat = Heat("cosine similarity of positions", "position", "position", similar[:SHOWN, :SHOWN].tolist())
    caption = (
        "Stripes along the diagonal: the similarity depends on the distance alone. It is highest near the diagonal, "
        "and falls off in waves (P4)."
    )
    return Figure("similarity", caption, (heat,))


def _waves(table: Tensor, waves: list[int]) -> Figure:
    lines = tuple(
        Line(f"dim {w}", list(range(SHOWN)), table[:SHOWN, w].tolist(), look="dashed" if w == 1 else "solid")
        for w in waves
    )
    caption = (
        "Single dimensions over the position. Dimensions 0 and 1 have the same wave, a quarter of a turn apart: sine "
        "and cosine. S3's sketch draws them with different frequencies."
    )
    return Figure("waves", caption, (Lines("selected dimensions", "position", "value", lines),))


def _alibi() -> Figure:
    bias = alibi_bias(HEADS, SHOWN, F64)
    distances = list(range(SHOWN))
    lines = tuple(Line(f"head {h}", distances, bias[h - 1, -1].flip(-1).tolist()) for h in (1, 2, 3, 4, 8))
    panels = (
        Heat(f"ALiBi, head 1 of {HEADS}", "key j", "query i", bias[0].tolist()),
        Lines("its heads", "distance", "bias", lines),
    )
    caption = (
        "ALiBi has nothing in the embeddings: its picture is what each head adds to the scores. The pattern is the "
        "same for all heads, the slope halves from one to the next."
    )
    return Figure("alibi", caption, panels)


STUDY = Study(
    tag="P13",
    title="Pictures of position",
    sources=("S3",),
    statement=(
        "S3 draws the sinusoidal encoding for d = 128 and 100 positions: 50 positions by 64 dimensions as a heat map, "
        "the cosine similarity between positions, dimensions 0, 1, 10, 20 and 50 as waves, and ALiBi's bias. Its "
        "sketch of the waves has different frequencies for dimensions 0 and 1."
    ),
    explanation=(
        "A heat map of the table shows the idea at a glance. Read down a column and you follow one wave; read along a "
        "row and you see all hands of the clocks at one moment. The columns on the left flicker, those on the right "
        "hardly change within 50 positions: d = 128 is made for texts far longer than the picture. The similarity map "
        "is made of stripes, since the product of two rows depends on their distance only.\n\n"
        "The waves come in pairs. Dimensions 2i and 2i + 1 are the sine and the cosine of the same angle, so 0 and 1 "
        "turn equally fast, one radian a position, and only their starting points differ. The frequencies stated here "
        "are measured from the numbers in the table: three neighbours on a wave, x(t − 1), x(t) and x(t + 1), give "
        "its speed without any knowledge of the formula that made it. ALiBi's pattern is no table of positions but a "
        "bias on the scores, one for each head (P10)."
    ),
    run=run,
    parameters=(
        Parameter("dim", DIM, "the width of the table (made even)", 4, 512),
        Parameter("positions", POSITIONS, "how many positions", SHOWN, 1000),
    ),
    seconds=0.5,
)
