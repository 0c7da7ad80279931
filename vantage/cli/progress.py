"""A progress bar for whatever takes more than two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 2.0  # seconds before a bar appears: for less it would only flicker


class Bar:
    """Called as ``bar(done, total)``. Draws on standard error, and only where that is a terminal."""

    def __init__(self, label: str, patience: float = PATIENCE) -> None:
        self._label = label
        self._patience = patience
        self._wanted = sys.stderr.isatty()
        self._started = time.monotonic()
        self._drawn: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        if not self._wanted or time.monotonic() - self._started < self._patience:
            return
        if self._drawn is None:
            self._drawn = self._draw()
        progress, task = self._drawn
        progress.update(task, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn is not None:
            self._drawn[0].stop()

    def _draw(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,  # what stays on the screen is the result
        )
        progress.start()
        return progress, progress.add_task(self._label, total=None)
