"""What ``vt.check`` found: a row for each law, as data that prints itself."""

from __future__ import annotations

import html
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from vantage.conformance.fault import Fault
from vantage.errors import BadInput, unknown

Status = Literal["ok", "failed", "n/a", "info"]

WORD = {"ok": "ok", "failed": "FAILED", "n/a": "n/a", "info": "info"}
STYLE = {"ok": "green", "failed": "bold red", "n/a": "dim", "info": "cyan"}


@dataclass(frozen=True)
class CheckRow:
    """One law: what it says, what was measured, and what to make of it."""

    name: str
    says: str
    status: Status
    measured: float | None = None  # the largest difference of any logit; infinite: not a number, or it raised
    tolerance: float | None = None
    note: str = ""  # failed: the likely cause; n/a: why not; info: what was found
    unit: str = "logits"  # "tokens" for a reach, where the tolerance is what it should be
    fault: Fault | None = None  # failed: the fault by name

    @property
    def ok(self) -> bool:
        return self.status != "failed"

    @property
    def numbers(self) -> tuple[str, str]:
        """What was measured and what is allowed, as text."""
        return _number(self.measured, self.unit), _number(self.tolerance, self.unit)

    def to_json(self) -> dict[str, object]:
        """JSON knows no infinity: such a number is null, and the note says why."""
        finite = self.measured is not None and isfinite(self.measured)
        return {
            "name": self.name,
            "says": self.says,
            "status": self.status,
            "measured": self.measured if finite else None,
            "tolerance": self.tolerance,
            "unit": self.unit,
            "note": self.note,
            "fault": None if self.fault is None else self.fault.to_json(),
        }


@dataclass(frozen=True)
class Report:
    """The rows of one model. ``report["cached-steps"]`` is the row of that name."""

    model: str
    dtype: str
    device: str
    scale: float  # the largest |logit| of a plain pass
    relative: float  # the tolerance, as a share of the scale
    rows: tuple[CheckRow, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[CheckRow, ...]:
        return tuple(row for row in self.rows if not row.ok)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that make rows fail, each name once."""
        return tuple({row.fault.name: row.fault for row in reversed(self.rows) if row.fault is not None}.values())[::-1]

    def __getitem__(self, name: str) -> CheckRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise BadInput(unknown("row", name, (row.name for row in self.rows)))

    # ---- for a program, a terminal, a notebook

    def to_json(self) -> dict[str, object]:
        return {
            "model": self.model,
            "dtype": self.dtype,
            "device": self.device,
            "ok": self.ok,
            "scale": self.scale if isfinite(self.scale) else None,
            "relative_tolerance": self.relative,
            "faults": [fault.to_json() for fault in self.faults],
            "rows": [row.to_json() for row in self.rows],
        }

    def table(self) -> Group:
        """For rich's console."""
        table = Table(title=self._heading(), title_justify="left")
        table.add_column("row", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("measured", justify="right", no_wrap=True)
        table.add_column("allowed", justify="right", no_wrap=True)
        table.add_column("what it says, and what was found", overflow="fold")
        for row in self.rows:
            text = Text(row.says)
            if row.note:
                text.append(f"\n{row.note}", style=STYLE[row.status])
            word = Text(WORD[row.status], style=STYLE[row.status])
            table.add_row(row.name, word, *row.numbers, text)
        return Group(*(Text(line, style=STYLE["failed"]) for line in self._faults()), table, Text(self._tolerance()))

    def __str__(self) -> str:
        wide = max(len(row.name) for row in self.rows)
        lines = [self._heading(), *self._faults()]
        for row in self.rows:
            numbers = "  ".join(f"{number:>8}" for number in row.numbers)
            note = f"Fault: {row.fault.name}" if row.fault is not None and row.note == str(row.fault) else row.note
            lines.append(f"  {WORD[row.status]:<6}  {row.name:<{wide}}  {numbers}  {note}".rstrip())
        return "\n".join([*lines, self._tolerance()])

    def _repr_html_(self) -> str:
        cells = [("row", "", "measured", "allowed", "what it says, and what was found")]
        for row in self.rows:
            text = f"{row.says} {row.note}".strip()
            cells.append((row.name, WORD[row.status], *row.numbers, text))
        lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in cells]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        faults = "".join(f"<p>{html.escape(str(fault))}</p>" for fault in self.faults)
        return (
            f"<p>{html.escape(self._heading())}</p>{faults}<table>{body}</table><p>{html.escape(self._tolerance())}</p>"
        )

    def _faults(self) -> list[str]:
        """Every fault in two or three lines: its name and where, what shows it, what to look at."""
        lines = []
        for fault in self.faults:
            lines.append(f"Fault: {fault.name}" + (f" ({fault.where})" if fault.where else ""))
            lines += [f"  {fault.shows}"] * bool(fault.shows) + [f"  Look at {fault.look}"] * bool(fault.look)
        return lines

    def _heading(self) -> str:
        judged = sum(row.status in ("ok", "failed") for row in self.rows)
        failed = len(self.failures)
        verb = "fails" if failed == 1 else "fail"
        verdict = f"{failed} of {judged} rows {verb}" if failed else f"all {judged} rows hold"
        return f"{self.model}, {self.dtype} on {self.device}: {verdict}"

    def _tolerance(self) -> str:
        coarse = " Check in float32 for a sharper answer." if self.dtype in ("float16", "bfloat16") else ""
        return (
            "Numbers are the largest difference of any logit, unless they count tokens or are a share of an output. "
            f"Allowed is {self.relative:.0e} ({self.dtype}) of the largest logit, {self.scale:.3g}.{coarse}"
        )


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if not isfinite(value):
        return "none"
    return f"{value:.0f} {unit}" if unit == "tokens" else f"{value:.1e}"
