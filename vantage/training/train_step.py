"""One step: the gradient of a batch, in as many pieces as memory asks for, and the update."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.training.batch import Batch
from vantage.training.compiled import loss_of
from vantage.training.micro_batch import is_out_of_memory, rows_that_fit
from vantage.training.optimise import clip
from vantage.training.settings import TrainSettings

if TYPE_CHECKING:
    from vantage.training.loop import TrainState


@dataclass(frozen=True)
class StepResult:
    """Mean loss and gradient norm, which may still be being computed, and the number of targets."""

    loss: Tensor
    norm: Tensor
    targets: int


class TrainStep:
    """Computes steps. ``rows`` is how many rows of a batch are computed at a time, once that has been chosen."""

    def __init__(self, settings: TrainSettings, state: TrainState, note: Callable[[str], None]):
        self.settings, self.state, self.note = settings, state, note
        self.chosen = settings.loop.accumulate == "auto"
        self.rows: int | None = None  # None: all of a part

    def __call__(self, step: int, batches: list[Batch]) -> StepResult:
        s, state, world = self.settings, self.state, self.state.world
        count = sum(batch.target_count for batch in batches)  # in host memory: no device is asked
        if world.shards > 1:  # all processes of a row count the same targets
            count = int(world.total(torch.tensor(count, device=state.device))) // world.context
        targets = max(count, 1)
        loss = self._gradient(step, batches, targets)
        norm = clip(state.learner.parameters(), s.loop.clip) if state.shares is None else state.shares.clip(s.loop.clip)
        state.optimiser.step(s.schedule.at(step))
        state.optimiser.zero_grad()
        if state.average is not None:
            state.average.update()
        return StepResult(world.total(loss) / targets, norm, targets)

    def choose_rows(self, batch: Batch, before: int | None) -> None:
        """Choose how many rows are computed at a time; no more than ``before``, where the run has had a number."""
        self._seed(0)
        state, loss = self.state, self.state.loss
        if state.device.type == "cpu":  # what is saved for the way back is looked at, which a compiled graph hides
            loss = loss_of(state.logits, self.settings.loop.smoothing)
        try:
            most = rows_that_fit(loss, batch, state.device, state.optimiser.zero_grad)
        except torch.OutOfMemoryError as e:
            raise self._too_large(1) from e
        self.rows = most if before is None else min(most, before)
        if self.rows < len(batch.tokens):
            parts = -(-len(batch.tokens) // self.rows)
            self.note(
                f"a batch of {len(batch.tokens)} rows is computed in {parts} parts of up to {self.rows}, as fits memory"
            )

    def _gradient(self, step: int, batches: list[Batch], targets: int) -> Tensor:
        """The summed loss; its gradient, divided by the number of targets, is added to the parameters'."""
        while True:
            pieces = batches if self.rows is None else [piece for b in batches for piece in b.split(self.rows)]
            try:
                return self._gradient_of(step, pieces, targets)
            except RuntimeError as e:  # torch.OutOfMemoryError is one
                if not is_out_of_memory(e):
                    raise
                self._halve(max(len(piece.tokens) for piece in pieces), e)
            # out here, where the failed pass's tensors are no longer held by the error
            self.state.optimiser.zero_grad()
            if self.state.device.type == "cuda":
                torch.cuda.empty_cache()

    def _gradient_of(self, step: int, pieces: list[Batch], targets: int) -> Tensor:
        state, world = self.state, self.state.world
        self._seed(step)
        loss = torch.zeros((), dtype=torch.float64, device=state.device)
        for i, batch in enumerate(pieces):
            self._sync(i == len(pieces) - 1)
            if world.context > 1:  # whose processes draw apart once a pass is under way
                self._seed(step, i)
            part = state.loss(batch.to(state.device))
            # FSDP takes the mean over the processes; the loss is the mean over all targets, wherever they are
            (part * (world.shards / targets)).backward()
            loss += part.detach().double()
        return loss

    def _halve(self, rows: int, error: Exception) -> None:
        if not self.chosen or rows == 1:
            raise self._too_large(rows) from error
        self.rows = -(-rows // 2)
        self.note(f"out of memory with {rows} rows at a time: continuing with {self.rows}")

    def _too_large(self, rows: int) -> Refused:
        way = "choose a smaller model, or shorter rows" if rows == 1 else "set loop.accumulate to 'auto'"
        return Refused(f"out of memory with {'1 row' if rows == 1 else f'{rows} rows'} at a time: {way}")

    def _sync(self, last: bool) -> None:
        """With several processes, gradients are sent with the last part of a batch only."""
        learner: Any = self.state.learner
        if self.state.world.shards > 1:
            learner.set_requires_gradient_sync(last)

    def _seed(self, step: int, piece: int | None = None) -> None:
        of_piece = "" if piece is None else f" {piece}"
        key = f"{self.settings.seed} {step} {self.state.world.part}{of_piece}".encode()
        torch.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "little"))
