"""A progress bar for trainings that are started from Python, on a terminal or in a notebook."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vantage.training.log import ScoreRecord, StepRecord

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def training_bar(console: Console | None = None) -> Progress:
    """Steps, the time left, and figures beside them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
        console=console,
    )


class ProgressBar:
    """A reporter that draws a bar on standard error; where nobody would see it, nothing."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task: Any = None
        self._evaluated = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begun(self, step: int, steps: int, about: str) -> None:
        if self._console.is_terminal or self._console.is_jupyter:
            self._bar = training_bar(self._console)
            self._task = self._bar.add_task("training", total=steps, completed=step, figures=about)
            self._bar.start()

    def stepped(self, record: StepRecord) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=record.step, figures=f"loss {record.loss:.4f}{self._evaluated}")

    def scored(self, records: list[ScoreRecord]) -> None:
        self._evaluated = f", {records[0].set} {records[0].loss:.4f}"

    def saved(self, where: Path) -> None: ...

    def note(self, text: str) -> None:
        if self._console.is_terminal or self._console.is_jupyter:
            self._console.print(text, highlight=False)
