"""What is drawn while something runs: a progress bar for whatever takes more than two seconds, and a live picture."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress import Progress, TaskID
    from rich.status import Status

BAR_DELAY_S = 2.0  # seconds before a bar appears: for less it would only flicker


class Bar:
    """Called as ``bar(done, total)``. Draws on standard error, and only where that is a terminal.

    ``first``: what is done before there is anything to count. A spinner says so until then."""

    def __init__(self, label: str, patience: float = BAR_DELAY_S, first: str | None = None) -> None:
        self._label = label
        self._patience = patience
        self._first = first
        self._spinner: Status | None = None
        self._on_terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._drawn: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if self._first is not None and self._on_terminal:
            from rich.console import Console

            self._spinner = Console(stderr=True).status(self._first)
            self._spinner.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        self._stop_spinner()
        if not self._on_terminal or time.monotonic() - self._started < self._patience:
            return
        if self._drawn is None:
            self._drawn = self._draw()
        progress, task = self._drawn
        progress.update(task, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_spinner()
        if self._drawn is not None:
            self._drawn[0].stop()

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

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


@final
class LivePicture:
    """Something on standard error that is drawn anew as it changes. Where that is no terminal nothing is ever drawn."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def drawn(self) -> bool:
        return self._live is not None

    def draw(self, picture: RenderableType, refresh_per_second: int = 4) -> None:
        """Begin with it, or show it in place of the last one."""
        from rich.console import Console
        from rich.live import Live

        if self._live is not None:
            self._live.update(picture)
        elif sys.stderr.isatty():
            self._live = Live(picture, console=Console(stderr=True), refresh_per_second=refresh_per_second)
            self._live.start()

    def note(self, text: str) -> None:
        """A line that stays, above the picture where there is one."""
        if self._live is not None:
            self._live.console.print(text)
        else:
            print(text, file=sys.stderr)
