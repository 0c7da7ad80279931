"""A9: from scores to heat maps, with the exercise of matching them."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Figure, Heat
from vantage.studies.shared.attention import heat_cells, weights_of
from vantage.studies.shared.findings import compared, conclude, held
from vantage.studies.shared.models import F64
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

LETTERS = "ABCD"
PLACES = ("1", "2", "3", "4")
NEXT = (1, 2, 3, 0)  # where the cyclic shift looks


def matrices() -> tuple[Tensor, ...]:
    """The document's four 4×4 matrices of scores."""
    hidden = torch.full((4, 4), -torch.inf, dtype=F64)
    shift = hidden.clone()
    shift[range(4), NEXT] = 5.0
    lower = torch.where(torch.ones(4, 4).tril() > 0, 5.0, hidden)
    return torch.full((4, 4), 2.0, dtype=F64), 9 * torch.eye(4, dtype=F64) + 1, lower, shift


def run(values: Values, progress: Progress) -> Result:
    given = matrices()
    uniform, diagonal, lower, shift = maps = [weights_of(scores) for scores in given]
    off = diagonal[~torch.eye(4, dtype=torch.bool)]
    right = [
        compared("matrix 1: every weight", float(uniform.mean()), 0.25, within=1e-12),
        compared("matrix 1: largest minus smallest weight", float(uniform.max() - uniform.min()), 0.0, within=1e-12),
        compared("matrix 2: off the diagonal", float(off.mean()), 0.00012, within=5e-6),
        *(compared(f"matrix 3: weights of row {t}", float(lower[t - 1, 0]), 1 / t, within=1e-12) for t in range(1, 5)),
        held("matrix 4: a permutation", bool((shift == torch.eye(4, dtype=F64)[list(NEXT)]).all())),
    ]
    slips = [compared("matrix 2: the diagonal", float(diagonal[0, 0]), 0.9997, within=5e-5)]
    order = torch.randperm(4, generator=torch.Generator().manual_seed(int(values["shuffle"]))).tolist()
    answers = {order[i] + 1: LETTERS[i] for i in range(4)}
    also = [Number(f"exercise: matrix {i} belongs to map", answers[i]) for i in sorted(answers)]
    words = (
        f"Three of the four are as the document has them. The diagonal of the second is {float(diagonal[0, 0]):.5f}, "
        "which rounds to 0.9996; with the printed 0.9997 a row would add up to more than 1."
    )
    return conclude(words, [*right, *also], _figures(given, maps, order), slips)


def _figures(given: tuple[Tensor, ...], maps: list[Tensor], order: list[int]) -> list[Figure]:
    scores = tuple(
        Heat(
            f"matrix {i + 1}",
            "key",
            "query",
            heat_cells(m),
            x_ticks=PLACES,
            y_ticks=PLACES,
            written=True,
        )
        for i, m in enumerate(given)
    )
    shuffled = tuple(
        Heat(f"map {LETTERS[i]}", "key", "query", heat_cells(maps[j]), PLACES, PLACES) for i, j in enumerate(order)
    )
    solved = tuple(
        Heat(
            f"matrix {j + 1}: map {LETTERS[order.index(j)]}",
            "key",
            "query",
            heat_cells(maps[j], 5),
            PLACES,
            PLACES,
            written=True,
        )
        for j in range(4)
    )
    return [
        Figure("scores", "Four matrices of scores. An empty cell is −∞: the key cannot be seen.", scores),
        Figure(
            "exercise", "Which map belongs to which matrix? Think of each row's softmax before you look on.", shuffled
        ),
        Figure(
            "solution",
            "Equal scores give equal weights, whatever they are. A lead of 9 leaves the others one part in 8000. "
            "What is masked gets nothing, and the only key that can be seen gets everything, whatever its score.",
            solved,
        ),
    ]


STUDY = Study(
    tag="A9",
    title="From scores to heat maps",
    sources=("S1",),
    statement=(
        "Four 4×4 matrices of scores and their attention maps: all 2 gives 0.25 everywhere; 10 on the diagonal and 1 "
        "elsewhere gives 0.9997 there; a lower triangle of 5 with −∞ above gives 1/t in row t; a cyclic shift of 5 "
        "with −∞ elsewhere gives a permutation. The reader is asked to match matrices and maps."
    ),
    explanation=(
        "The softmax works on each row by itself. Only differences within a row count: adding the same number to all "
        "of its scores changes nothing, so a row of 2s and a row of 5s give the same weights. A score that is higher "
        "by 9 has a weight that is e⁹, about 8100, times as large.\n\n"
        "Minus infinity takes a key out altogether. A row in which only some keys can be seen, with equal scores, "
        "gives each of them the same share: the first row of the triangle looks at itself alone, the second halves "
        "its weight, and so on. If one key is left, it gets the whole weight. Match the maps with the matrices "
        "first, and then look at the solution; another shuffle gives another exercise."
    ),
    run=run,
    parameters=(Parameter("shuffle", 1, "which order the maps of the exercise come in", 0, 1000),),
    seconds=0.2,
)
