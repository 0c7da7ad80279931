"""What stops a run that has gone wrong: a loss that is no number, or one that jumps."""

from __future__ import annotations

import json
from collections import deque
from math import isfinite
from pathlib import Path
from statistics import median

from torch import Tensor

from vantage.checkpoints.folder import write_tensors
from vantage.errors import VantageError
from vantage.training.batch import Batch
from vantage.training.sections import GuardSettings

RECENT = 100  # steps that a loss is compared with


class Diverged(VantageError):
    """The run was stopped. Its last checkpoint is as it was, and the batch that did it is saved."""


class LossMonitor:
    """Keeps the last losses. They are a function of the log, so a resumed run sees the same."""

    def __init__(self, guard: GuardSettings, recent: list[float]):
        self.guard = guard
        self.recent = deque(recent[-RECENT:], maxlen=RECENT)

    def problem(self, loss: float, norm: float) -> str | None:
        """Why this step is not to be trusted, or None."""
        if not isfinite(loss):
            return f"the loss is {loss}"
        if not isfinite(norm):
            return f"the gradient's norm is {norm}"
        if self.guard.spike and len(self.recent) == RECENT and loss > median(self.recent) + self.guard.spike:
            usual = median(self.recent)
            return f"the loss jumped to {loss:.3f} from about {usual:.3f} (guard.spike = {self.guard.spike})"
        self.recent.append(loss)
        return None


def save_batch(folder: Path, step: int, batches: list[Batch], why: str, rank: int | None = None) -> Path:
    """The batch of a bad step, to look at; of one of several processes its share of it."""
    folder = folder / "bad"
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for i, batch in enumerate(batches):
        parts = {"tokens": batch.tokens, "targets": batch.targets, "source": batch.source}
        tensors |= {f"{i}.{name}": t.cpu().contiguous() for name, t in parts.items() if t is not None}
    path = folder / f"step-{step:08d}{'' if rank is None else f'-{rank}'}.safetensors"
    write_tensors(tensors, path)
    path.with_suffix(".json").write_text(json.dumps({"step": step, "why": why}))
    return path
