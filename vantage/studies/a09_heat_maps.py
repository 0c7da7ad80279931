"""A9: from scores to heat maps, with the exercise of matching them."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Figure, Heat
from vantage.studies.shared.attention import heat_cells, weights_of
from vantage.studies.shared.findings import compared, conclude, held
from vantage.studies.shared.models import F64
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

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
    score_matrices = matrices()
    uniform, diagonal, lower, shift = maps = [weights_of(scores) for scores in score_matrices]
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
    words = TEXT.conclusion(weight=float(diagonal[0, 0]))
    return conclude(words, [*right, *also], _figures(score_matrices, maps, order), slips)


def _figures(score_matrices: tuple[Tensor, ...], maps: list[Tensor], order: list[int]) -> list[Figure]:
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
        for i, m in enumerate(score_matrices)
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
        Figure("scores", TEXT.caption("scores"), scores),
        Figure("exercise", TEXT.caption("exercise"), shuffled),
        Figure("solution", TEXT.caption("solution"), solved),
    ]


STUDY = TEXT.study(
    "A9",
    run,
    (TEXT.parameter("shuffle", 1, 0, 1000),),
    seconds=0.2,
)
