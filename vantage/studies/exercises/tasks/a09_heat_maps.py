"""A9: which heat map belongs to which matrix of scores. The matrices are drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import attend

SIZE = 4
LETTERS = "ABCDE"
SEEDS = 10_000
SHADES = " .:-=+*#%@"

TASK = """\
Below are five matrices of scores, A to E (a row for each query, · stands for −∞), and five heat maps, 1 to 5:
the weights that a softmax over each row makes of them, darker where the weight is larger. The maps are in
another order.

Which map belongs to which matrix? Write the number of the map of A, then of B, and so on, into MATCH. These are
the matrices of SEED = {seed}; vantage.studies.exercises.puzzle(seed) has others, for seeds from 0 to 9999.

{shown}"""

STARTER = """\
# vantage exercise A9: match the matrices of scores to their heat maps
SEED = {seed}

# the number of the heat map (1 to 5) of A, B, C, D, E
MATCH = ["?", "?", "?", "?", "?"]
"""

ANSWER = """\
# vantage exercise A9: match the matrices of scores to their heat maps
SEED = {seed}

# the number of the heat map (1 to 5) of A, B, C, D, E
MATCH = {match}
"""

WORDS = """\
A softmax looks at one row at a time and only at differences: a constant added to a row changes nothing, so a
matrix of equal numbers gives 0.25 everywhere, whatever the number is. A difference of 9 is as good as a mask
(e^9 is about 8,100, so diagonal 10 over 1 gives 0.9996), one of 1 or 2 leaves a visible rest. −∞ gives exactly
0, and what is left shares the row: under a causal mask of equal scores row t is 1/t."""


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
    return Exercise(
        tag="A9",
        title="Match scores to heat maps",
        task=TASK.format(seed=seed, shown=_shown(these)),
        starter=STARTER.format(seed=seed),
        answer=ANSWER.format(seed=seed, match=these.match),
        words=WORDS + _why(these),
        names=("SEED", "MATCH"),
        checks=(("a seed", seed_is_right), ("five maps, each once", permuted), ("the matches", matched)),
        numbers=True,
    )


def _why(these: Drawn) -> str:
    told = [f"{LETTERS[i]} is map {these.order[i] + 1}: {kind}." for i, kind in enumerate(these.kinds)]
    return " Here: " + " ".join(told)


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


def seed_is_right(ask: Ask) -> str | None:
    seed = ask.value("SEED")
    if type(seed) is not int or not 0 <= seed < SEEDS:
        return f"SEED is {str(seed)[:40]}; it should be the whole number of your task, from 0 to {SEEDS - 1}"
    return None


def _given(ask: Ask) -> list[int] | str:
    got = ask.value("MATCH")
    if not isinstance(got, list | tuple) or len(got) != len(LETTERS):
        return f"MATCH should be a list of {len(LETTERS)} numbers, one for each of {', '.join(LETTERS)}"
    if "?" in got or None in got:
        return "MATCH still has a ? in it: write the number of a map for each matrix"
    if not all(type(n) is int for n in got):
        return "MATCH should hold whole numbers, 1 to 5"
    return list(got)


def permuted(ask: Ask) -> str | None:
    got = _given(ask)
    if isinstance(got, str):
        return got
    if sorted(got) == list(range(len(LETTERS))):
        return "the maps are numbered from 1 to 5, not from 0"
    for n in got:
        if not 1 <= n <= len(LETTERS):
            return f"there is no map {n}: they are numbered from 1 to 5"
        if got.count(n) > 1:
            at = " and ".join(LETTERS[i] for i, m in enumerate(got) if m == n)
            return f"map {n} is given to {at}; each map belongs to one matrix"
    return None


def matched(ask: Ask) -> str | None:
    got, seed = _given(ask), seed_is_right(ask)
    if seed is not None or isinstance(got, str):
        return "it could not be told"
    these = drawn(ask.value("SEED"))
    if got == these.match:
        return None
    inverse = [these.match.index(n) + 1 for n in range(1, len(LETTERS) + 1)]
    if got == inverse:
        return (
            "this is the other way round: for each map its matrix. MATCH has, for A to E in turn, the number of the map"
        )
    wrong = [i for i, n in enumerate(got) if n != these.match[i]]
    told = []
    for i in wrong:
        chosen = these.order.index(got[i] - 1) if got[i] - 1 in these.order else None
        shows = "" if chosen is None else f", and map {got[i]} shows: {these.kinds[chosen]}"
        told.append(f"{LETTERS[i]} is not map {got[i]}. {_hint(these.matrices[i])}{shows}")
    return "\n".join(told)


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
        return f"−∞ gives a weight of exactly 0, and its last row has {len(last)} other score(s), {rest}"
    first = scores[0]
    if bool((first == first[0]).all()):
        return "The scores of a row are all equal, and a softmax looks at differences only"
    best, gap = int(first.argmax()), float(first.max() - first.min())
    return f"In its first row key {best + 1} leads by {gap:g}, so it weighs e^{gap:g} times as much as another"


EXERCISE = puzzle(0)
