"""The conformance matrix: run every cell of a covering array, and try everything that must be refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isfinite

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text

from vantage.conformance.check import check
from vantage.conformance.covering import Cell, cover, find
from vantage.conformance.factors import FACTOR_NAMES, NUMBER, RefusalRule, allowed_by, factors, rules
from vantage.conformance.fault import Fault
from vantage.conformance.scenarios import Bench, run_cell
from vantage.errors import BadInput, PartError, VantageError

# Logits are of size 1 to 10. In float64 nothing but rounding may differ; float32 rounds at 1e-7 a
# hundred times over on the way through three sharp layers.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
MAX_SIDE_BY_SIDE = 4  # encodings of a table that has them as columns
NAMED = 4  # failed cells whose fault is looked for


@dataclass(frozen=True)
class CellResult:
    """One cell that was run."""

    cell: Cell
    error: float  # the largest difference of any logit; inf when it raised
    ok: bool
    note: str = ""

    @property
    def name(self) -> str:
        return "/".join(self.cell)


@dataclass(frozen=True)
class RefusedCell:
    """A combination that must be refused, and the message of the refusal."""

    combination: tuple[tuple[str, str], ...]  # (factor, value)
    message: str
    ok: bool

    @property
    def name(self) -> str:
        return " ".join(f"{factor}={value}" for factor, value in self.combination)


@dataclass
class MatrixReport:
    """What the matrix showed."""

    strength: int
    tolerance: float
    filter: str = ""
    results: list[CellResult] = field(default_factory=list)
    refusals: list[RefusedCell] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)  # of the cells that fail, each once

    @property
    def failures(self) -> list[CellResult | RefusedCell]:
        return [r for r in (*self.results, *self.refusals) if not r.ok]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def worst(self) -> float:
        return max((r.error for r in self.results), default=0.0)

    def to_json(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            "strength": self.strength,
            "tolerance": self.tolerance,
            "worst": _number(self.worst),
            "cells": [
                {**dict(zip(FACTOR_NAMES, r.cell, strict=True)), "error": _number(r.error), "ok": r.ok, "note": r.note}
                for r in self.results
            ],
            "faults": [fault.to_json() for fault in self.faults],
            "refused": [{**dict(r.combination), "said": r.message, "ok": r.ok} for r in self.refusals],
        }

    def table(self) -> Group:
        """Encodings against caches and kernels: cells passed, and the worst error of each encoding.

        A few encodings stand side by side, so that no name of a cache or kernel is cut off.
        """
        parts = [(factor, v) for factor in ("cache", "kernel") for v in factors()[factor]]
        lines = [["encoding", *(value for _, value in parts), "worst error"]]
        for encoding in factors()["encoding"]:
            rows = [r for r in self.results if r.cell[0] == encoding]
            if rows:
                counts = [_count([r for r in rows if r.cell[NUMBER[f]] == v]) for f, v in parts]
                lines.append([encoding, *counts, f"{max(r.error for r in rows):.0e}"])
        if len(lines) <= 1 + MAX_SIDE_BY_SIDE:
            lines = [list(line) for line in zip(*lines, strict=True)]
        table = Table(title="Cells equal to the uncached float64 reference", title_justify="left")
        for i, name in enumerate(lines[0]):
            table.add_column(name, justify="right" if i else "left")
        for line in lines[1:]:
            table.add_row(*line)
        many = {1: "every one", 2: "every pair", 3: "every triple"}
        words = {n: f"{word} of the parts that can work together" for n, word in many.items()}
        passed, refused = sum(r.ok for r in self.results), sum(r.ok for r in self.refusals)
        lines = [
            f"{passed} of {len(self.results)} cells equal within {self.tolerance:.0e} (worst {self.worst:.1e}); "
            + (
                f"only those with {self.filter!r} in their name."
                if self.filter
                else f"they hold {words[self.strength]}."
            )
        ]
        if not self.filter:
            lines.append(
                f"{refused} of {len(self.refusals)} combinations that cannot work are refused with their reason."
            )
        lines += [f"FAILED {r.name}: {r.note if isinstance(r, CellResult) else r.message}" for r in self.failures]
        lines += [f"Fault: {fault}" for fault in self.faults]
        return Group(table, *(Text(line) for line in lines))


def _number(error: float) -> float | None:
    """JSON knows no infinity."""
    return error if isfinite(error) else None


def _count(rows: list[CellResult]) -> str:
    passed = sum(r.ok for r in rows)
    return "-" if not rows else str(passed) if passed == len(rows) else f"{passed}/{len(rows)}"


def check_usable(device: torch.device | str) -> None:
    """Refuse a device that is not here, before every cell fails for it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:  # torch raises either, depending on what is missing
        raise BadInput(f"device={str(device)!r} cannot be used here: {e}") from e


def run_matrix(
    *,
    strength: int = 2,
    filter: str = "",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> MatrixReport:
    """Run the matrix. ``filter`` keeps the cells whose name (values joined by /) contains it."""
    if strength not in (1, 2, 3):
        raise BadInput(f"strength={strength}: use 1 (every value), 2 (every pair) or 3 (every triple)")
    check_usable(device)
    cells = [cell for cell in cover(factors(), strength, allowed_by(rules())) if filter in "/".join(cell)]
    refused = [] if filter else list(refused_combinations())
    if not cells:
        raise BadInput(f"no cell's name contains {filter!r}; a name is {'/'.join(FACTOR_NAMES)}")
    report = MatrixReport(strength, TOLERANCE[dtype], filter)
    total = len(cells) + len(refused)
    for cell in cells:
        report.results.append(_run(cell, dtype, device))
        progress(len(report.results), total)
    for rule, cell in refused:
        report.refusals.append(try_refusal(rule, cell))
        progress(len(cells) + len(report.refusals), total)
    wrong = [result.cell for result in report.results if not result.ok and isfinite(result.error)]
    report.faults += name_faults(wrong[:NAMED], dtype, device)
    return report


def name_faults(cells: Iterable[Cell], dtype: torch.dtype, device: torch.device | str) -> list[Fault]:
    """What ``vt.check`` finds in the models of these cells, each fault once."""
    faults: dict[str, Fault] = {}
    for cell in cells:
        bench = Bench.of(cell, dtype, device)
        report = check(
            bench.model, new_cache=bench.make_cache if bench.cache is not None and bench.cache.exact else None
        )
        faults |= {fault.name: fault for fault in reversed(report.faults)} | faults
    return list(faults.values())


def refused_combinations() -> Iterable[tuple[RefusalRule, Cell]]:
    """Every combination that a rule refuses, completed to a cell that no other rule touches."""
    levels = [list(values) for values in factors().values()]
    every = rules()
    for rule in (r for r in every if r.tested):
        others = tuple(r for r in every if r is not rule)
        for values in itertools.product(*rule.where.values()):
            chosen = {NUMBER[factor]: value for factor, value in zip(rule.where, values, strict=True)}
            cell = find(chosen, levels, allowed_by(others))
            if cell is not None:  # otherwise another rule refuses all of it anyway
                yield rule, tuple(cell[i] for i in range(len(levels)))


def _run(cell: Cell, dtype: torch.dtype, device: torch.device | str) -> CellResult:
    try:
        error = run_cell(cell, dtype, device)
    except PartError as e:
        return CellResult(cell, float("inf"), False, str(e))
    except VantageError as e:
        return CellResult(cell, float("inf"), False, f"refused, but no rule says so: {e}")
    except Exception as e:  # a broken part must show as one failed cell, not end the run
        return CellResult(cell, float("inf"), False, f"{type(e).__name__}: {e}")
    return CellResult(
        cell, error, error <= TOLERANCE[dtype], "" if error <= TOLERANCE[dtype] else f"off by {error:.1e}"
    )


def try_refusal(rule: RefusalRule, cell: Cell) -> RefusedCell:
    combination = tuple((factor, cell[NUMBER[factor]]) for factor in rule.where)
    try:
        error = run_cell(cell)
    except VantageError as e:
        return RefusedCell(combination, str(e), rule.because in str(e))
    except Exception as e:  # likewise
        return RefusedCell(combination, f"{type(e).__name__}: {e}", False)
    return RefusedCell(combination, f"it ran (error {error:.1e}), but a rule says: {rule.because}", False)
