"""Cells that hold every pair of parts which a kernel takes: what it refuses is found out first, and left out.

In the matrix's own cells a kernel that refuses one part refuses all others of that cell with it, and their pairs are
never tried. Here a part that is refused beside the plainest others is left out, and so is a pair; the rest is covered
anew until nothing is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vantage.conformance.covering import Cell, combinations, cover, find
from vantage.conformance.factors import FACTOR_NAMES, NO_CACHE, NUMBER, allowed_by, caches, factors, rules

PLAIN = {"encoding": "none", "attention": "grouped", "mask": "causal", "cache": NO_CACHE, "scenario": "full"}
Refusals = Callable[[Sequence[Cell]], Sequence[str | None]]  # why a kernel does not do these cells; None: it does


@dataclass
class AcceptedCells:
    """What a kernel is tried on, and what it refuses: the plainest cell for each part or pair, with the reason."""

    kernel: str
    cells: list[Cell] = field(default_factory=list)
    refused: dict[Cell, str] = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    without: list[dict[int, str]] = field(default_factory=list)  # values that are refused together

    def __post_init__(self) -> None:
        rounded = {name for name, kind in caches().items() if not kind.exact}
        left_out = {"attention": {"hard"}, "cache": rounded}  # see ``kernel_column.cells_through``
        self.values = {
            name: tuple(
                sorted((v for v in values if v not in left_out.get(name, ())), key=lambda v: v != PLAIN.get(name))
            )
            for name, values in factors().items()
        } | {"kernel": (self.kernel,)}
        self._allowed = allowed_by(rules())

    def allowed(self, chosen: Mapping[int, str]) -> bool:
        together = any(all(chosen.get(i) == v for i, v in values.items()) for values in self.without)
        return not together and self._allowed(chosen)

    def plainest(self, chosen: Mapping[int, str]) -> Cell | None:
        """The cell that has these values and the plainest others; ``None``: a rule leaves none."""
        whole = find(dict(chosen), [list(values) for values in self.values.values()], self.allowed)
        return None if whole is None else tuple(whole[i] for i in range(len(FACTOR_NAMES)))

    def leave_out(self, candidates: Sequence[Mapping[int, str]], refusals: Refusals) -> int:
        """Leave out those of these values that are refused beside the plainest others; how many those were."""
        plainest = [(dict(values), self.plainest(values)) for values in candidates]
        tried = [(values, cell) for values, cell in plainest if cell is not None]
        refused = 0
        for (values, cell), why in zip(tried, refusals([cell for _, cell in tried]), strict=True):
            if why is not None:
                self.without.append(values)
                self.refused[cell] = why
                refused += 1
        return refused


def accepted_cells(kernel: str, refusals: Refusals) -> AcceptedCells:
    """Every pair that the kernel takes, in few cells. Whatever else a cell has is as plain as can be, so that many of
    them ask for the same compiled kernel."""
    asked: dict[Cell, str | None] = {}

    def ask(cells: Sequence[Cell]) -> list[str | None]:
        new = [cell for cell in dict.fromkeys(cells) if cell not in asked]
        asked.update(zip(new, refusals(new), strict=True))
        return [asked[cell] for cell in cells]

    accepted = AcceptedCells(kernel)
    accepted.leave_out([{NUMBER[name]: value} for name, values in accepted.values.items() for value in values], ask)
    while True:
        accepted.cells = cover(accepted.values, 2, accepted.allowed, earliest=True)
        refused = [cell for cell, why in zip(accepted.cells, ask(accepted.cells), strict=True) if why is not None]
        if not refused:
            return accepted
        for size in (2, 3, len(FACTOR_NAMES)):  # of the values that are to blame together
            groups = dict.fromkeys(group for cell in refused for group in combinations(cell, size))
            if accepted.leave_out([dict(group) for group in groups], ask):
                break
