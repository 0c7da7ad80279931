"""How the models of a comparison learn while they are trained: a picture from the first steps on."""

from __future__ import annotations

import threading
from typing import final

from vantage.figures import Figure, Line, Lines

POINTS = 60  # of a line


@final
class LearningCurves:
    """The loss over the steps, for each task and entry: the mean of its models so far. Two threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._losses: dict[tuple[str, str], dict[int, list[float]]] = {}  # by the last step of each stretch
        self.version = 0  # grows with what is known

    def take(self, task: str, entry: str, step: int, steps: int, loss: float) -> None:
        """The loss at a step of so many."""
        width = max(1, -(-steps // POINTS))
        with self._lock:
            at = self._losses.setdefault((task, entry), {})
            at.setdefault(min(steps, -(-step // width) * width), []).append(loss)
            self.version += 1

    def forget(self, task: str, entry: str) -> None:
        """What was learned at rates that were only tried."""
        with self._lock:
            if self._losses.pop((task, entry), None) is not None:
                self.version += 1

    def figure(self) -> Figure | None:
        """A panel for each task, a line for each entry; ``None`` while nothing is known."""
        with self._lock:
            panels: dict[str, list[Line]] = {}
            for (task, entry), losses in self._losses.items():
                steps = sorted(losses)
                means = [sum(losses[step]) / len(losses[step]) for step in steps]
                panels.setdefault(task, []).append(Line(entry, [float(step) for step in steps], means))
        if not panels:
            return None
        drawn = tuple(Lines(task, "training step", "loss", tuple(lines)) for task, lines in panels.items())
        return Figure("learning", "The loss on what they are trained with, the mean of the models so far.", drawn)
