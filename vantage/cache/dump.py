"""Ledgers as plain data: numbers for a header, and tables beside them.

Every ledger dumps itself and is made again from a dump; a file is one way to keep dumps. What comes from a file is
believed only as far as it was checked: every place, block and position stands inside its buffer, and what the host
claims to know of the positions is so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch
from torch import Tensor

from vantage.cache.facts import Tables
from vantage.errors import CheckpointError
from vantage.spec.positions import Known

MAX_NUMBER = 2**31  # of any number in a dump: more is no real cache
ROWS = 2**16  # at most: a ledger takes memory for each, before anything shows that they are there


@final
@dataclass(frozen=True)
class LedgerDump:
    """All that is needed to make a ledger again. ``numbers`` can be written as JSON; "kind" names the ledger."""

    numbers: Mapping[str, Any]
    tables: Mapping[str, Tensor]


def damaged(why: str) -> NoReturn:
    raise CheckpointError(f"this is no saved cache, or a damaged one: {why}")


# ---- writing


def dump_tables(tables: Tables | None, n: int) -> dict[str, Tensor]:
    """The first n columns, in host memory."""
    if tables is None:
        return {}
    columns = {"pos": tables.pos, "order": tables.order, "segment": tables.segment}
    return {name: t[:, :n].cpu().contiguous() for name, t in columns.items() if t is not None}


def dump_known(known: Known) -> dict[str, Any]:
    return {
        "first": known.first,
        "order": known.order,
        "pos": known.pos,
        "counts": known.counts,
        "empty": known.empty,
        "same_rows": known.same_rows,
    }


# ---- reading


def whole_number(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MAX_NUMBER:
        damaged(f"{name} is {str(value)[:40]!r}")
    return value


@final
class DumpReader:
    """What a dump says, each value checked for its kind when it is read."""

    def __init__(self, dump: LedgerDump):
        self._numbers, self._tables = dump.numbers, dump.tables

    def text(self, name: str) -> str:
        value = self._numbers.get(name)
        return value if isinstance(value, str) else damaged(f"{name} is {str(value)[:40]!r}")

    def count(self, name: str, least: int = 1) -> int:
        return whole_number(self._numbers.get(name), name, least)

    def maybe(self, name: str, least: int = 1) -> int | None:
        return None if self._numbers.get(name) is None else self.count(name, least)

    @property
    def batch(self) -> int:
        rows = self.count("batch")
        return rows if rows <= ROWS else damaged(f"it holds {rows} rows")

    def list(self, name: str, length: int) -> list[Any]:
        value = self._numbers.get(name)
        return value if isinstance(value, list) and len(value) == length else damaged(f"{name} is not {length} rows")

    def known(self, name: str = "known") -> Known:
        """What the host claims to know of the positions."""
        value = self._numbers.get(name)
        if not isinstance(value, dict):
            damaged(f"{name} is missing")
        inner = DumpReader(LedgerDump(value, {}))

        def bounds(of: str) -> tuple[int, int] | None:
            if value.get(of) is None:
                return None
            low, high = (whole_number(n, of, -MAX_NUMBER) for n in inner.list(of, 2))
            return low, high

        counts = value.get("counts")
        if counts is not None:
            counts = tuple(whole_number(n, "counts", 0) for n in inner.list("counts", self.batch))
        empty, same_rows = value.get("empty"), value.get("same_rows")
        if not (isinstance(empty, bool) and isinstance(same_rows, bool)):
            damaged(f"{name} is incomplete")
        return Known(inner.maybe("first", 0), bounds("order"), bounds("pos"), counts, empty, same_rows)

    def run(self, n: int) -> Known:
        """The facts of a plain run of n tokens in every row."""
        first = self.known().first
        return damaged("it has no positions") if first is None else Known.run(first, self.batch, n)

    def tables(self, n: int) -> Tables | None:
        """The tables of n places, in host memory; ``None``: there are none."""
        if "order" not in self._tables:
            return None
        for name in ("pos", "order", "segment"):
            t = self._tables.get(name)
            if t is None and name == "segment":
                continue
            if t is None or tuple(t.shape) != (self.batch, n):
                shape = None if t is None else tuple(t.shape)
                damaged(f"its table {name!r} has the shape {shape}, not {(self.batch, n)}")
            whole = t.dtype == torch.int64 or (name == "pos" and t.is_floating_point())
            if not whole or not bool(torch.isfinite(t.double()).all()) or bool((t.abs() >= MAX_NUMBER).any()):
                damaged(f"its table {name!r} does not hold positions")
        return Tables(self._tables["pos"].clone(), self._tables["order"].clone(), self._tables.get("segment"))

    def rows(self, times: int) -> DumpReader:
        """The same, of rows that each stand for so many."""
        return DumpReader(LedgerDump(dict(self._numbers) | {"batch": self.batch * times}, self._tables))

    def made(self, name: str, classes: Mapping[str, type[Any]]) -> Any:
        """What is described by its kind and its fields, whole numbers and flags."""
        fields = dict(value) if isinstance(value := self._numbers.get(name), dict) else {}
        kind = fields.pop("kind", None)
        if kind not in classes or not all(
            isinstance(v, bool) or whole_number(v, name, 0) >= 0 for v in fields.values()
        ):
            damaged(f"{name} is {str(value)[:80]!r}")
        try:
            return classes[kind](**fields)
        except TypeError as e:
            damaged(f"{name}: {e}")

    def scores(self, places: int) -> Tensor:
        """A finite number for every place, (B, places)."""
        t = self._tables.get("scores")
        if t is None or not t.is_floating_point() or tuple(t.shape) != (self.batch, places):
            damaged("it has no scores of its places")
        return t if bool(torch.isfinite(t).all()) else damaged("its scores are not finite")

    def column(self, name: str) -> Tensor:
        """A number for every row, (B,)."""
        t = self._tables.get(name)
        if (
            t is None
            or t.dtype != torch.int64
            or tuple(t.shape) != (self.batch,)
            or bool((t.abs() >= MAX_NUMBER).any())
        ):
            damaged(f"it has no {name!r} of its rows")
        return t


def check_known(claim: Known, tables: Tables, at: int, n: int) -> None:
    """Raises unless everything that is claimed of the columns at … at + n - 1 is so."""
    if n == 0:
        damaged("it has tables of no tokens")
    true = tables.facts(at, n)
    for claimed, bounds in ((claim.order, true.order), (claim.pos, true.pos)):
        if claimed is not None and bounds is not None and not (claimed[0] <= bounds[0] and bounds[1] <= claimed[1]):
            damaged(f"positions {bounds} lie outside {claimed}")
    first = claim.first is not None and claim.first != true.first
    counts = claim.counts is not None and claim.counts != true.counts
    if first or counts or (true.empty and not claim.empty) or (claim.same_rows and not true.same_rows):
        damaged("what it claims of its positions is not so")
