"""Covering arrays: few cells in which every pair (or triple) of values that can occur together does occur."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

Cell = tuple[str, ...]
Combination = tuple[tuple[int, str], ...]  # (factor, value) pairs, factors ascending
Allowed = Callable[[Mapping[int, str]], bool]  # whether values chosen so far break no rule yet


def cover(
    factors: Mapping[str, Sequence[str]], strength: int, allowed: Allowed, seed: int = 0, *, earliest: bool = False
) -> list[Cell]:
    """Cells that break no rule and together hold every ``strength``-combination that any such cell holds.

    Greedy: each cell starts from a combination not covered yet and takes, factor by factor, the
    value that covers most: one at random where several do, or the ``earliest`` of a factor's values, which makes cells
    that are alike in all but what they are there for. The same arguments give the same cells.
    """
    levels = [list(values) for values in factors.values()]
    wanted = sorted(reachable(factors, strength, allowed))
    missing = set(wanted)
    draw = random.Random(seed)
    cells: list[Cell] = []
    for start in wanted:
        if start not in missing:
            continue
        grown = (_complete(start, levels, strength, missing, allowed, draw, earliest) for _ in range(6))
        best = max(grown, key=lambda c: c[0])
        cells.append(best[1])
        missing.difference_update(combinations(best[1], strength))
    return cells


def combinations(cell: Cell, strength: int) -> Iterator[Combination]:
    return itertools.combinations(enumerate(cell), strength)


def reachable(factors: Mapping[str, Sequence[str]], strength: int, allowed: Allowed) -> Iterator[Combination]:
    """Every combination that some cell holds without breaking a rule."""
    levels = [list(values) for values in factors.values()]
    for columns in itertools.combinations(range(len(levels)), strength):
        for values in itertools.product(*(levels[c] for c in columns)):
            chosen = tuple(zip(columns, values, strict=True))
            if find(dict(chosen), levels, allowed) is not None:
                yield chosen


def find(chosen: dict[int, str], levels: list[list[str]], allowed: Allowed) -> dict[int, str] | None:
    """Some whole cell with these values that breaks no rule, by backtracking."""
    if not allowed(chosen):
        return None
    free = next((i for i in range(len(levels)) if i not in chosen), None)
    if free is None:
        return chosen
    cells = (find({**chosen, free: value}, levels, allowed) for value in levels[free])
    return next((cell for cell in cells if cell is not None), None)


def _complete(
    start: Combination,
    levels: list[list[str]],
    strength: int,
    missing: set[Combination],
    allowed: Allowed,
    draw: random.Random,
    earliest: bool,
) -> tuple[int, Cell]:
    """A cell that holds ``start``, grown greedily, and how many missing combinations it covers."""
    chosen = dict(start)
    order = [i for i in range(len(levels)) if i not in chosen]
    draw.shuffle(order)
    for i in order:
        gains = {v: _gain({**chosen, i: v}, i, strength, missing) for v in levels[i]}
        ranked = sorted(levels[i], key=lambda v: (-gains[v], 0.0 if earliest else draw.random()))
        chosen[i] = next(v for v in ranked if find({**chosen, i: v}, levels, allowed) is not None)
    cell = tuple(chosen[i] for i in range(len(levels)))
    return sum(c in missing for c in combinations(cell, strength)), cell


def _gain(chosen: dict[int, str], new: int, strength: int, missing: set[Combination]) -> int:
    """Missing combinations that the value at ``new`` would complete."""
    others = [i for i in chosen if i != new]
    groups = itertools.combinations(others, strength - 1)
    return sum(tuple((i, chosen[i]) for i in sorted((*group, new))) in missing for group in groups)
