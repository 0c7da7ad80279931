"""P10: ALiBi's bias, its slopes, and what the document's formula leaves out."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.figures import Figure, Heat, Line, Lines
from vantage.functional import alibi_bias, alibi_slopes
from vantage.inspect import decompose
from vantage.inspect.decomposition import Decomposition
from vantage.model import decoder
from vantage.spec.model import Scores
from vantage.studies.shared.findings import checked, compared, conclude, judged
from vantage.studies.shared.models import F64, ROUNDING, max_difference, sharp_model
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

PAPER = 8  # the number of heads for which S3's series is the paper's
VOCAB, HEAD_DIM = 19, 16
EXACT = 1e-6  # of slopes in float32


def run(values: Values, progress: Progress) -> Result:
    heads, length = int(values["heads"]), int(values["length"])
    bias = alibi_bias(heads, length, F64)
    slopes = alibi_slopes(heads, F64)
    i, j = torch.arange(length)[:, None], torch.arange(length)
    progress(0.3, "scores of a real model")
    numbers = [
        compared(
            "bias − (−m·|i − j|), over all heads",
            max_difference(bias, -slopes[:, None, None] * (i - j).abs()),
            0.0,
            within=ROUNDING,
        ),
        compared(f"{PAPER} heads: S3's series 1/2 … 1/256 against the paper's", _off(PAPER), 0.0, within=EXACT),
        *(_geometric(n) for n in (4, 8, 16)),
        Number(
            f"slopes of {heads} heads, the first and the last", f"{float(slopes[0]):.6g} and {float(slopes[-1]):.6g}"
        ),
        *_odd(12),
        *_scores(length),
    ]
    slips = [compared(f"{n} heads: S3's series against the paper's", _off(n), 0.0, within=EXACT) for n in (4, 16)]
    slips.append(compared(f"what multiplies q·k at a head width of {HEAD_DIM}", _scale(length), 1.0, within=EXACT))
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_pictures(bias, slopes), _series(heads)], slips)


def s3_slopes(heads: int) -> Tensor:
    """The document's series, as it is printed: 1/2, 1/4, …, 1/2^h."""
    return 0.5 ** torch.arange(1, heads + 1, dtype=F64)


def _off(heads: int) -> float:
    return max_difference(alibi_slopes(heads, F64), s3_slopes(heads))


def _geometric(heads: int) -> Number:
    """Whether each slope is the one before it times 2^(−8/h)."""
    slopes = alibi_slopes(heads, F64)
    ratio = float((slopes[1:] / slopes[:-1] - 2 ** (-8 / heads)).abs().max())
    return checked(
        f"{heads} heads: ratio of neighbours less 2^(−8/{heads}); the last is {float(slopes[-1]):.6f}",
        ratio,
        0.0,
        within=ROUNDING,
    )


def _odd(heads: int) -> list[Number]:
    """No power of two: those of the power below, then every second one of the power above."""
    slopes, below, above = alibi_slopes(heads, F64), alibi_slopes(8, F64), alibi_slopes(16, F64)
    return [
        checked(f"{heads} heads: the first 8 less those of 8", max_difference(slopes[:8], below), 0.0, within=ROUNDING),
        checked(
            f"{heads} heads: the last 4 less every second of 16",
            max_difference(slopes[8:], above[0:8:2]),
            0.0,
            within=ROUNDING,
        ),
    ]


def _decomposed(length: int, scores: Scores = Scores()) -> Decomposition:
    """The scores of a real attention layer with ALiBi, in parts."""
    attention = GroupedQuery(PAPER, head_dim=HEAD_DIM, scores=scores)
    model = sharp_model(decoder(vocab=VOCAB, width=32, layers=1, attention=attention, position="alibi"))
    tokens = torch.randint(VOCAB, (1, length), generator=torch.Generator().manual_seed(0))
    return decompose(model, tokens, layer=0)


def _scores(length: int) -> list[Number]:
    parts = _decomposed(length)
    seen = parts.seen
    bias = max_difference(parts.part("position")[seen], alibi_bias(PAPER, length, F64)[seen])
    return [
        checked("a real layer: what position adds to its scores, less alibi_bias", bias, 0.0, within=ROUNDING),
        judged("and its parts add up to within", parts.error, parts.error < ROUNDING),
    ]


def _scale(length: int) -> float:
    """The content part of the scores over q·k as it is: a layer with the scale 1 has the same weights."""
    content, product = (_decomposed(length, scores).part("content") for scores in (Scores(), Scores(scale=1.0)))
    return float((content * product).sum() / product.square().sum())


def _pictures(bias: Tensor, slopes: Tensor) -> Figure:
    heads = tuple(f"{h + 1}" for h in range(len(slopes)))
    left = bias[:, -1].flip(-1).exp()  # the last query sees all distances
    panels = (
        Heat(f"head 1, slope {float(slopes[0]):.4g}: the bias", "key j", "query i", bias[0].tolist()),
        Heat("all heads: e^bias", "distance", "head", left.tolist(), y_ticks=heads),
    )
    return Figure("bias", TEXT.caption("bias"), panels)


def _series(heads: int) -> Figure:
    lines = []
    for n in dict.fromkeys((8, 16, heads)):
        lines.append(Line(f"paper, {n} heads", list(range(1, n + 1)), alibi_slopes(n, F64).tolist()))
    lines.append(Line("S3, 16 heads", list(range(1, 17)), s3_slopes(16).tolist(), look="dashed"))
    panel = Lines("slopes", "head", "slope", tuple(lines), log_y=True, marks=(("1/256", 2**-8),))
    return Figure("slopes", TEXT.caption("slopes"), (panel,))


STUDY = TEXT.study(
    "P10",
    run,
    (
        TEXT.parameter("heads", 8, 1, 64),
        TEXT.parameter("length", 32, 4, 128),
    ),
    seconds=0.5,
)
