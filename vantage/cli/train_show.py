"""How a training run looks in a terminal: a bar with the loss and the time left, and a table of the last scores."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vantage.cli.progress import LivePicture

if TYPE_CHECKING:
    from vantage.training import ScoreRecord, StepRecord

LINE_INTERVAL_S = 10.0  # seconds between two lines where there is no terminal
SMOOTH = 0.95


class TrainingDisplay:
    """Draws on standard error. Where that is no terminal it prints a line now and then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._picture = LivePicture()
        self._bar: Any = None
        self._task: Any = None
        self._table: Any = None
        self._loss: float | None = None
        self._targets = self._seconds = 0.0  # running sums in which older steps weigh less
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._picture.__exit__(kind, error, trace)

    # ---- what the run reports

    def preparing(self, done: int, total: int) -> None:
        if total and time.monotonic() - self._printed > LINE_INTERVAL_S / 5:
            self._printed = time.monotonic()
            print(f"reading text: {done / total:.0%}", file=sys.stderr)

    def begun(self, step: int, steps: int, about: str) -> None:
        resumed = f", continuing from step {step}" if step else ""
        print(f"{about}{resumed}; the run is in {self.folder}", file=sys.stderr)
        self._steps = steps
        if sys.stderr.isatty():
            self._draw(step, steps)

    def stepped(self, record: StepRecord) -> None:
        first = self._loss is None
        self._loss = record.loss if first else SMOOTH * (self._loss or 0.0) + (1 - SMOOTH) * record.loss
        self._targets = SMOOTH * self._targets + record.targets  # apart: the last two steps may be read at one time
        self._seconds = SMOOTH * self._seconds + record.seconds
        rate = self._targets / max(self._seconds, 1e-9)
        figures = f"loss {self._loss:.4f}  lr {record.lr:.2e}  {rate:,.0f} targets/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=record.step, figures=figures)
        elif time.monotonic() - self._printed > LINE_INTERVAL_S:
            self._printed = time.monotonic()
            print(f"step {record.step} of {self._steps}: {figures}", file=sys.stderr)

    def scored(self, records: list[ScoreRecord]) -> None:
        if self._picture.drawn:
            self._table = _table(records)
            self._picture.draw(self._group())
            return
        for r in records:
            apart = "".join(f", {name} {share:.1%}" for name, share in r.groups.items())
            print(f"step {r.step}: {r.set}: loss {r.loss:.4f}, exact {r.exact:.1%}{apart}", file=sys.stderr)

    def saved(self, where: Path) -> None: ...

    def note(self, text: str) -> None:
        self._picture.note(text)

    # ---- the picture

    def _draw(self, step: int, steps: int) -> None:
        from vantage.training.progress import training_bar

        self._bar = training_bar()
        self._task = self._bar.add_task("training", total=steps, completed=step, figures="")
        self._picture.draw(self._group())

    def _group(self) -> Any:
        from rich.console import Group

        return Group(self._bar, *([] if self._table is None else [self._table]))


def _table(records: list[ScoreRecord]) -> Any:
    from rich.table import Table

    groups = sorted({name for r in records for name in r.groups})
    table = Table("set", "loss", "tokens right", "exact", *groups, title=f"after step {records[0].step}")
    for r in records:
        apart = [f"{r.groups[name]:.1%}" if name in r.groups else "" for name in groups]
        table.add_row(r.set, f"{r.loss:.4f}", f"{r.tokens:.1%}", f"{r.exact:.1%}", *apart)
    return table
