"""A16: what attention costs, formula against counted operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.utils.flop_counter import FlopCounterMode

from vantage.attention import GroupedQuery
from vantage.figures import Bars, Figure, Line, Lines
from vantage.spec.masks import Causal, Everything, dense
from vantage.spec.positions import Positions
from vantage.studies.shared.attention import run_attention, sharp_attention
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

LENGTHS = (8, 16, 32, 64, 128, 256)
PARTS = ("projections", "scores and sum", "output")


@dataclass(frozen=True)
class Size:
    """M tokens of input, N of output, h heads, each d×d."""

    M: int
    N: int
    h: int
    d: int


@dataclass(frozen=True)
class CostFormula:
    """The document's order, and the sum that it stands for with the output projection as it is."""

    order: Callable[[Size], int]
    exact: Callable[[Size], int]


KINDS = {
    "self": CostFormula(
        lambda s: (s.M * s.d + s.M**2) * s.d * s.h,
        lambda s: 3 * s.M * s.h * s.d**2 + 2 * s.M**2 * s.d * s.h + s.M * s.h * s.d**2,
    ),
    "multi-query": CostFormula(
        lambda s: (s.M * s.d + s.M**2) * s.d * s.h,
        lambda s: s.M * (s.h + 2) * s.d**2 + 2 * s.M**2 * s.d * s.h + s.M * s.h * s.d**2,
    ),
    "cross": CostFormula(
        lambda s: (s.M * s.d + s.N * s.d + s.M * s.N) * s.h * s.d,
        lambda s: (s.N + 2 * s.M) * s.h * s.d**2 + 2 * s.M * s.N * s.d * s.h + s.N * s.h * s.d**2,
    ),
    "causal": CostFormula(
        lambda s: (s.N * s.d + s.N**2) * s.d * s.h,
        lambda s: 3 * s.N * s.h * s.d**2 + 2 * s.N**2 * s.d * s.h + s.N * s.h * s.d**2,
    ),
}


def run(values: Values, progress: Progress) -> Result:
    size = Size(*(int(values[name]) for name in ("input", "output", "heads", "head_dim")))
    counts = {name: counted(name, size) for name in KINDS}
    over: dict[str, list[int]] = {name: [] for name in KINDS}
    for i, length in enumerate(LENGTHS):
        progress(i / len(LENGTHS), f"length {length}")
        for name, counts_over_lengths in over.items():
            counts_over_lengths.append(sum(counted(name, Size(length, length, size.h, size.d)).values()))
    right = [
        compared(f"{name} attention: multiply-accumulates", sum(counts[name].values()), kind.exact(size))
        for name, kind in KINDS.items()
    ]
    out = counts["self"]["output"]
    right.append(compared("output projection alone, against M·h·d²", out, size.M * size.h * size.d**2))
    short = KINDS["self"].exact(size) - size.M * size.h * size.d**2 + size.h * size.d**2
    slips = [
        compared("output projection alone, against the document's h·d²", out, size.h * size.d**2),
        compared("self attention, against the sum with h·d²", sum(counts["self"].values()), short),
    ]
    also = [
        Number(f"{name}: counted, over the document's order", sum(counts[name].values()) / KINDS[name].order(size))
        for name in KINDS
    ]
    also.append(Number("causal: share of the counted pairs that the mask lets through", _visible(size.N)))
    words = TEXT.conclusion(output_cost=out, claimed_cost=size.h * size.d**2)
    return conclude(words, [*right, *also], _figures(counts, over, size), slips)


def counted(name: str, size: Size) -> dict[str, int]:
    """Multiply-accumulates of one pass of the module, by part, as torch counts them."""
    crosses = name == "cross"
    config = GroupedQuery(size.h, 1 if name == "multi-query" else None, head_dim=size.d)
    mask = Causal() if name == "causal" else Everything()
    attention = sharp_attention(config, size.d, mask, cross=crosses)
    x = random_normal(1, size.M if name in ("self", "multi-query") else size.N, size.d)
    with FlopCounterMode(display=False) as counter:
        run_attention(attention, x, source=random_normal(1, size.M, size.d, seed=1) if crosses else None)
    by_module = {of: sum(n.values()) // 2 for of, n in counter.get_flop_counts().items()}  # two operations each
    whole = type(attention).__name__
    output = by_module[f"{whole}.out"]
    projections = sum(by_module[f"{whole}.{part}"] for part in ("qkv", "q", "kv") if f"{whole}.{part}" in by_module)
    return dict(zip(PARTS, (projections, by_module["Global"] - projections - output, output), strict=True))


def _visible(N: int) -> float:
    pos = Positions.arange(1, N)
    return float(dense(Causal(), pos.against(pos)).double().mean())


def _figures(counts: dict[str, dict[str, int]], over: dict[str, list[int]], size: Size) -> list[Figure]:
    x = [float(n) for n in LENGTHS]
    lines: list[Line] = []
    for name in ("self", "multi-query"):  # with M = N cross and causal are counted as self is
        lines.append(Line(f"{name}, counted", x, [float(n) for n in over[name]]))
    order = [float(KINDS["self"].order(Size(n, n, size.h, size.d))) for n in LENGTHS]
    lines.append(Line("(Md + M²)dh", x, order, look="dashed"))
    growth = Lines("Over the length", "tokens M", "multiply-accumulates", tuple(lines), log_x=True, log_y=True)
    labels = tuple(KINDS)
    parts = Bars(
        f"By part, M = {size.M}, N = {size.N}",
        "multiply-accumulates",
        labels,
        tuple((part, [float(counts[name][part]) for name in labels]) for part in PARTS),
    )
    wrong = Bars(
        "Output projection of self attention",
        "multiply-accumulates",
        ("counted", "M·h·d²", "document: h·d²"),
        (
            (
                "output",
                [float(counts["self"]["output"]), float(size.M * size.h * size.d**2), float(size.h * size.d**2)],
            ),
        ),
    )
    return [
        Figure("cost", TEXT.caption("cost", width=size.d), (growth, parts)),
        Figure("output", TEXT.caption("output"), (wrong,)),
    ]


STUDY = TEXT.study(
    "A16",
    run,
    (
        TEXT.parameter("input", 48, 2, 256),
        TEXT.parameter("output", 32, 2, 256),
        TEXT.parameter("heads", 4, 1, 16),
        TEXT.parameter("head_dim", 32, 2, 128),
    ),
    seconds=1.0,
)
