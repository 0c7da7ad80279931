"""A9: which heat map belongs to which matrix of scores. The matrices are drawn from a seed."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.studies.exercises.exercise import Exercise, StudentCode
from vantage.studies.exercises.library_parts import attend
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)

SIZE = 4
LETTERS = "ABCDE"
SEEDS = 10_000
SHADES = " .:-=+*#%@"


@dataclass(frozen=True)
class Drawn:
    """Matrices in the order of the letters, and which map (from 0) is whose."""

    matrices: tuple[Tensor, ...]
    kinds: tuple[str, ...]  # what is to be seen on each map
    order: tuple[int, ...]  # order[i]: the map of matrix i

    @property
    def maps(self) -> tuple[Tensor, ...]:
        """Weights, in the order in which they are shown: those of the real kernel."""
        shown = [torch.empty(0)] * len(self.matrices)
        for i, matrix in enumerate(self.matrices):
            shown[self.order[i]] = weights(matrix)
        return tuple(shown)

    @property
    def match(self) -> list[int]:
        return [at + 1 for at in self.order]


def weights(scores: Tensor) -> Tensor:
    """The row softmax, by attention over unit vectors as keys."""
    finite = scores.masked_fill(scores == -torch.inf, -1e30)  # −∞ · 0 would be NaN in the product with the keys
    eye = torch.eye(SIZE, dtype=torch.float64)
    return attend(finite.double(), eye, eye, scale=1.0).out


def drawn(seed: int) -> Drawn:
    """Five different ones out of eight kinds, with numbers of their own."""
    if not 0 <= seed < SEEDS:
        raise BadInput(f"seed {seed}: use one from 0 to {SEEDS - 1}")
    dice = random.Random(seed)
    low, high = dice.randint(0, 3), dice.randint(4, 9)
    eye, shift = torch.eye(SIZE), dice.choice((1, 3))
    hidden = torch.ones(SIZE, SIZE).triu(1).bool()
    column = dice.randrange(SIZE)
    pool = [
        (torch.full((SIZE, SIZE), float(high)), "the same weight everywhere, 0.25"),
        (low + (high + 2.0) * eye, "nearly all weight on the diagonal"),
        (low + 1.5 * eye, "a diagonal somewhat darker than the rest"),
        (
            torch.full((SIZE, SIZE), float(high)).masked_fill(hidden, -torch.inf),
            "nothing above the diagonal, and rows 1, 1/2, 1/3, 1/4",
        ),
        (
            torch.full((SIZE, SIZE), -torch.inf).masked_fill(eye.roll(shift, 1).bool(), float(high)),
            f"one cell in each row, {shift} to the right of the diagonal (around the edge)",
        ),
        (
            torch.full((SIZE, SIZE), float(low)).index_fill(1, torch.tensor([column]), low + 8.0),
            f"all rows look at column {column + 1}",
        ),
        (low + (high + 2.0) * eye.flip(1), "nearly all weight on the other diagonal, from the top right"),
        (
            torch.full((SIZE, SIZE), -torch.inf).masked_fill(~hidden, 0.0) + low + 1.0 * torch.arange(SIZE),
            "nothing above the diagonal, and in each row more weight on later keys",
        ),
    ]
    chosen = dice.sample(pool, len(LETTERS))
    order = dice.sample(range(len(LETTERS)), len(LETTERS))
    return Drawn(tuple(m for m, _ in chosen), tuple(k for _, k in chosen), tuple(order))


def puzzle(seed: int = 0) -> Exercise:
    """The exercise with the matrices of this seed."""
    these = drawn(seed)
    checks = (("a seed", seed_is_right), ("five maps, each once", permuted), ("the matches", matched))
    return replace(
        TEXT.exercise("A9", ("SEED", "MATCH"), checks, numbers=True),
        task=TEXT.task.format(seed=seed, shown=_shown(these)),
        starter=_filled(TEXT.starter, SEED=seed),
        answer=_filled(TEXT.answer, SEED=seed, MATCH=these.match),
        words=TEXT.explanation + _why(these),
    )


def _filled(source: str, **values: object) -> str:
    """A file with these values in its assignments."""
    for name, value in values.items():
        source = re.sub(rf"^{name} = .*$", f"{name} = {value}", source, flags=re.MULTILINE)
    return source


def _why(these: Drawn) -> str:
    reasons = [f"{LETTERS[i]} is map {these.order[i] + 1}: {kind}." for i, kind in enumerate(these.kinds)]
    return " Here: " + " ".join(reasons)


def _shown(these: Drawn) -> str:
    """Matrices and maps as text, side by side."""
    matrices = [[" ".join(f"{_cell(v):>4}" for v in row) for row in m.tolist()] for m in these.matrices]
    maps = [["".join(_shade(v) for v in row) for row in m.tolist()] for m in these.maps]
    lines = []
    for letter, rows in zip(LETTERS, matrices, strict=True):
        lines += [f"{letter}", *("  " + row for row in rows)]
    lines += ["", "   ".join(f"{i + 1:<{2 * SIZE + 2}}" for i in range(len(maps)))]
    edge = "   ".join("+" + "-" * 2 * SIZE + "+" for _ in maps)
    lines += [edge, *("   ".join(f"|{m[row]}|" for m in maps) for row in range(SIZE)), edge]
    return "\n".join(line.rstrip() for line in lines) + f"\n\nShades from 0 to 1: [{SHADES}], two for each cell."


def _cell(value: float) -> str:
    return "·" if value == float("-inf") else f"{value:g}"


def _shade(value: float) -> str:
    """A square root, so that small weights are seen at all."""
    return 2 * SHADES[min(len(SHADES) - 1, int(value**0.5 * len(SHADES)))]


def heat_maps_png(seed: int, path: Path) -> Path:
    """The five heat maps as a picture. Needs matplotlib (vantage[plot])."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Refused(
            "pictures need matplotlib: pip install 'vantage[plot]'; the task shows the maps as text"
        ) from error
    from vantage.figures.heatmap import heat

    figure = Figure(figsize=(10, 2.4), layout="constrained")
    axes: Any = figure.subplots(1, len(LETTERS))
    for number, (one, weight) in enumerate(zip(axes, drawn(seed).maps, strict=True), start=1):
        heat(one, weight, title=str(number))
        one.set_xticks([])
        one.set_yticks([])
    figure.savefig(path, dpi=120)
    return path


# ---- grading


def seed_is_right(student: StudentCode) -> str | None:
    seed = student.value("SEED")
    if type(seed) is not int or not 0 <= seed < SEEDS:
        return TEXT.feedback("seed", seed=str(seed)[:40], last=SEEDS - 1)
    return None


def _given(student: StudentCode) -> list[int] | str:
    got = student.value("MATCH")
    if not isinstance(got, list | tuple) or len(got) != len(LETTERS):
        return TEXT.feedback("length", count=len(LETTERS), letters=", ".join(LETTERS))
    if "?" in got or None in got:
        return TEXT.feedback("unfilled")
    if not all(type(n) is int for n in got):
        return TEXT.feedback("whole numbers")
    return list(got)


def permuted(student: StudentCode) -> str | None:
    got = _given(student)
    if isinstance(got, str):
        return got
    if sorted(got) == list(range(len(LETTERS))):
        return TEXT.feedback("counted from 0")
    for n in got:
        if not 1 <= n <= len(LETTERS):
            return TEXT.feedback("no such map", n=n)
        if got.count(n) > 1:
            at = " and ".join(LETTERS[i] for i, m in enumerate(got) if m == n)
            return TEXT.feedback("given twice", n=n, letters=at)
    return None


def matched(student: StudentCode) -> str | None:
    got, seed = _given(student), seed_is_right(student)
    if seed is not None or isinstance(got, str):
        return TEXT.feedback("unknown")
    these = drawn(student.value("SEED"))
    if got == these.match:
        return None
    inverse = [these.match.index(n) + 1 for n in range(1, len(LETTERS) + 1)]
    if got == inverse:
        return TEXT.feedback("other way round")
    wrong = [i for i, n in enumerate(got) if n != these.match[i]]
    sentences = []
    for i in wrong:
        chosen = these.order.index(got[i] - 1) if got[i] - 1 in these.order else None
        shows = "" if chosen is None else TEXT.feedback("wrong map shows", number=got[i], kind=these.kinds[chosen])
        sentences.append(
            TEXT.feedback("wrong", letter=LETTERS[i], number=got[i], hint=_hint(these.matrices[i]), shows=shows)
        )
    return "\n".join(sentences)


def _hint(scores: Tensor) -> str:
    """How to see it, not which it is."""
    hidden = scores == -torch.inf
    if bool(hidden.any()):
        last = scores[-1][~hidden[-1]]
        rest = (
            "which is alone and takes all"
            if len(last) == 1
            else ("which are equal" if bool((last == last[0]).all()) else "which rise towards the last")
        )
        return TEXT.feedback("hint hidden", count=len(last), rest=rest)
    first = scores[0]
    if bool((first == first[0]).all()):
        return TEXT.feedback("hint equal")
    best, gap = int(first.argmax()), float(first.max() - first.min())
    return TEXT.feedback("hint leads", key=best + 1, gap=gap)


EXERCISE = puzzle(0)
