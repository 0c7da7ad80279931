"""The training loop.

Nothing in it remembers anything but tensors and the number of the step. A step's examples are a function of its
number, and so are its random numbers (dropout, drawn positions): the generators are seeded anew at every step. So a
run that was killed and goes on from a checkpoint computes what it would have computed, to the bit on a CPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vantage.errors import CheckpointError, VantageError
from vantage.training import checkpoint
from vantage.training.batch import Batch, Data
from vantage.training.distributed import World
from vantage.training.divergence import Diverged, LossMonitor, save_batch
from vantage.training.evaluate import evaluate
from vantage.training.learners import Learner
from vantage.training.log import Reporter, ScoreRecord, StepRecord, TrainLog, read_log
from vantage.training.memory import keep_freed_memory
from vantage.training.optimise import Averaged, Optimiser, clip
from vantage.training.optimise.tensors import reshard, whole
from vantage.training.settings import TrainSettings


@dataclass
class TrainState:
    """What a run trains and trains with, on its device."""

    learner: Learner
    data: Data
    optimiser: Optimiser
    average: Averaged | None
    logits: Callable[[Batch], Tensor]  # the learner, in the precision that was asked for
    loss: Callable[[Batch], Tensor]  # the summed loss of a batch, compiled or not
    device: torch.device
    world: World


@dataclass(frozen=True)
class _PendingStep:
    """A step that was done, and what is known of it once the device has got so far."""

    step: int
    batches: list[Batch]
    loss: Tensor
    norm: Tensor
    targets: int


class Loop:
    """One run in its folder. ``stop`` may be set from outside (Ctrl-C): the step is finished, and the state saved."""

    def __init__(
        self, settings: TrainSettings, state: TrainState, folder: Path, report: Reporter, origin: Mapping[str, str]
    ):
        self.settings, self.state, self.folder, self.report = settings, state, folder, report
        self.origin = origin  # what a run must have in common with one that goes on with it
        self.step = 0
        self.stop = False
        self.finished = False  # the last step was done, or there was reason to stop early
        self.best: tuple[float, int] | None = None  # of the watched set: loss, and how many evaluations ago
        self.scores: list[ScoreRecord] = []

    # ---- the run

    def run(self) -> list[ScoreRecord]:
        """Train to the end, or until somebody says stop. The last scores."""
        s, state = self.settings, self.state
        self.step = self._resume()
        log = TrainLog(self.folder, self.step) if state.world.first else None
        state.world.wait()  # all read the same log: who watches alone stops alone
        recent, scores = read_log(self.folder)
        self.scores = [score for score in scores if score.step == self.step]
        monitor = LossMonitor(s.guard, [record.loss for record in recent])
        self.report.begun(self.step, s.loop.steps, self._describe())
        self.finished = self.finished or self.step >= s.loop.steps
        try:
            if not self.finished:
                self._check_longest_test()
                state.learner.train()
                with keep_freed_memory(state.device):
                    self._steps(log, monitor)
        finally:
            if log:
                log.close()
        return self.scores

    def _check_longest_test(self) -> None:
        """Read one batch of the longest test: what a model cannot read should not be found out at the end."""
        first = {name: sets[0] for name, sets in self.state.data.held_out().items() if len(sets)}
        if not first:
            return
        longest = max(first, key=lambda name: first[name].tokens.shape[1])
        self.state.learner.eval()
        try:
            with torch.no_grad():
                self.state.logits(first[longest].to(self.state.device))
        except VantageError as e:
            raise type(e)(f"the model cannot read the test set {longest!r}: {e}") from e

    def _steps(self, log: TrainLog | None, monitor: LossMonitor) -> None:
        pending: list[_PendingStep] = []  # steps whose numbers have not been read: reading them waits for the device
        lag = 1 if self.state.device.type == "cuda" else 0
        clock = time.perf_counter()
        for step, batches in self._batches():
            pending.append(_PendingStep(step, batches, *self._train_step(step, batches)))
            self.step = step + 1
            due = self._due()
            while len(pending) > (0 if due else lag):
                clock = self._record(pending.pop(0), clock, log, monitor)
            if due and self._after_step(log):
                return

    def _record(self, pending: _PendingStep, clock: float, log: TrainLog | None, monitor: LossMonitor) -> float:
        """Read the numbers of a step, check them, write them down."""
        s = self.settings
        loss, norm = float(pending.loss), float(pending.norm)
        why = monitor.problem(loss, norm)
        if why is not None:
            self._diverged(pending, loss, why)
        now = time.perf_counter()
        lr = s.schedule.at(pending.step) * s.optimiser.lr
        record = StepRecord(pending.step + 1, loss, lr, norm, pending.targets, now - clock)
        if log:
            log.stepped(record)
        self.report.stepped(record)
        return now

    def _due(self) -> bool:
        """Whether something happens between this step and the next."""
        s = self.settings
        every = (s.evaluate.every, s.save.every)
        last = self.step >= s.loop.steps
        return last or self.stop or self.state.world.size > 1 or any(n and self.step % n == 0 for n in every)

    def _after_step(self, log: TrainLog | None) -> bool:
        """What happens between two steps; whether this was the last."""
        s = self.settings
        last = self.step >= s.loop.steps
        enough = False
        if last or (s.evaluate.every and self.step % s.evaluate.every == 0):
            try:
                self._evaluate(log)
            except Exception:
                if self.state.world.size == 1:  # of several, one alone would wait for the others for ever
                    self.save()  # whatever is wrong with a test, what was trained is kept
                raise
            enough = self._enough()
        stop = self.state.world.agree(self.stop, self.state.device)
        self.finished = last or enough
        if self.finished or stop or (s.save.every and self.step % s.save.every == 0):
            self.save()
        if enough and not last:
            self.report.note(f"stopped early after {self.step} steps: {s.evaluate.why(self.best, self.scores)}")
        return self.finished or stop

    def _diverged(self, pending: _PendingStep, loss: float, why: str) -> None:
        step, batches = pending.step, pending.batches
        saved = checkpoint.steps(self.folder / "checkpoints")
        world = self.state.world
        where = save_batch(self.folder, step + 1, batches, why, world.rank if world.size > 1 else None)
        back = f"the last checkpoint is of step {saved[-1]}" if saved else "there is no checkpoint yet"
        ways = "Begin anew with a lower optimiser.lr"
        if isfinite(loss) and isfinite(float(pending.norm)):
            ways += ", or go on all the same: --resume guard.spike=0"
        raise Diverged(f"stopped at step {step + 1}: {why}. The batch is in {where}; {back}. {ways}")

    # ---- one step

    def _train_step(self, step: int, batches: list[Batch]) -> tuple[Tensor, Tensor, int]:
        """Loss, gradient norm and number of targets of a step; the first two may still be being computed."""
        s, state = self.settings, self.state
        world = state.world
        self._seed(step)
        count = sum(batch.target_count for batch in batches)  # in host memory: no device is asked
        if world.size > 1:
            count = int(world.total(torch.tensor(count, device=state.device)))
        targets = max(count, 1)
        loss = torch.zeros((), dtype=torch.float64, device=state.device)
        for i, batch in enumerate(batches):
            self._sync(i == len(batches) - 1)
            part = state.loss(batch.to(state.device))
            # FSDP takes the mean over the processes; the loss is the mean over all targets, wherever they are
            (part * (world.size / targets)).backward()
            loss += part.detach().double()
        norm = clip(state.learner.parameters(), s.loop.clip)
        state.optimiser.step(s.schedule.at(step))
        state.optimiser.zero_grad()
        if state.average is not None:
            state.average.update()
        return world.total(loss) / targets, norm, targets

    def _sync(self, last: bool) -> None:
        """With several processes, gradients are sent with the last part of a batch only."""
        learner: Any = self.state.learner
        if self.state.world.size > 1:
            learner.set_requires_gradient_sync(last)

    def _seed(self, step: int) -> None:
        key = f"{self.settings.seed} {step} {self.state.world.rank}".encode()
        torch.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "little"))

    def _batches(self) -> Iterator[tuple[int, list[Batch]]]:
        """Each step's batches, made while the step before is computed."""
        with ThreadPoolExecutor(1) as pool:
            ahead: Future[list[Batch]] | None = None
            for step in range(self.step, self.settings.loop.steps):
                batches = self._make_batches(step) if ahead is None else ahead.result()
                ahead = pool.submit(self._make_batches, step + 1) if step + 1 < self.settings.loop.steps else None
                yield step, batches

    def _make_batches(self, step: int) -> list[Batch]:
        loop, world = self.settings.loop, self.state.world
        first = step * loop.batch
        each = loop.batch // loop.accumulate
        parts = [range(first + i * each, first + (i + 1) * each) for i in range(loop.accumulate)]
        return [self.state.data.batch(world.share(part)) for part in parts]

    # ---- evaluation

    def _evaluate(self, log: TrainLog | None) -> None:
        state = self.state
        with state.average.swap() if state.average is not None else contextlib.nullcontext():
            self.scores = evaluate(state.learner, state.logits, state.data.held_out(), self.step, state.device)
            self._track_best()
        if log:
            log.scored(self.scores)
        self.report.scored(self.scores)

    def _track_best(self) -> None:
        """Remember the best loss of the watched set, and the weights that had it if they are wanted."""
        watched, best = self.settings.evaluate.watched(self.scores), self.best
        if watched is None:
            return
        self.best = (watched.loss, 0) if best is None or watched.loss < best[0] else (best[0], best[1] + 1)
        if self.best[1] == 0 and self.settings.evaluate.best:
            checkpoint.write(self.folder / "best", self.step, self._weights(), {}, self.state.world)
            checkpoint.prune(self.folder / "best", 1, self.state.world)

    def restore_best(self) -> None:
        """Put the best weights into the model, if those were asked for."""
        saved = checkpoint.steps(self.folder / "best") if self.settings.evaluate.best else []
        if saved:
            checkpoint.verified_metadata(self.folder / "best", saved[-1])
            checkpoint.read(self.folder / "best", saved[-1], self._weights(), self.state.world)

    def _enough(self) -> bool:
        """Whether to stop before the last step: the goal is reached, or nothing has got better for long."""
        e = self.settings.evaluate
        watched = e.watched(self.scores)
        reached = watched is not None and e.goal is not None and watched.exact >= e.goal
        return reached or bool(e.patience and self.best is not None and self.best[1] >= e.patience)

    # ---- checkpoints

    def _weights(self) -> dict[str, Tensor]:
        learner = self.state.learner
        reshard(learner)
        persistent = set(learner.state_dict())
        weights = {f"model.{name}": p.detach() for name, p in learner.named_parameters() if p.requires_grad}
        return weights | {f"model.{name}": b for name, b in learner.named_buffers() if name in persistent}

    @functools.cached_property
    def _frozen(self) -> str:
        """What the weights that are not trained add up to. They are not kept: whoever goes on loads them again."""
        frozen = [(name, p) for name, p in self.state.learner.named_parameters() if not p.requires_grad]
        digest = hashlib.sha256()
        for name, p in frozen:
            digest.update(name.encode())
            digest.update(whole(p.detach()).cpu().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16] if frozen else ""

    def tensors(self) -> dict[str, Tensor]:
        """All that a run remembers."""
        state = self.state
        tensors = self._weights()
        tensors |= {f"optimiser.{name}": t for name, t in state.optimiser.state_tensors().items()}
        if state.average is not None:
            tensors |= {f"average.{name}": t for name, t in state.average.state_tensors().items()}
        return tensors

    def save(self) -> None:
        folder = self.folder / "checkpoints"
        best = None if self.best is None else list(self.best)
        early = self.finished and self.step < self.settings.loop.steps
        metadata = {**self.origin, "best": best, "early": early, "frozen": self._frozen}
        where = checkpoint.write(folder, self.step, self.tensors(), metadata, self.state.world)
        checkpoint.prune(folder, self.settings.save.keep, self.state.world)
        self.report.saved(where)

    def _resume(self) -> int:
        """Go on from the last whole checkpoint, if there is one. The step to begin with."""
        folder = self.folder / "checkpoints"
        saved = checkpoint.steps(folder)
        if not saved:
            return 0
        metadata = checkpoint.verified_metadata(folder, saved[-1])
        if metadata.get("frozen", "") != self._frozen:
            raise CheckpointError(
                f"{folder} is of a run that adapts another model: the one that is loaded has changed since. Bring it "
                "back, or train anew in another folder with --out"
            )
        checkpoint.read(folder, saved[-1], self.tensors(), self.state.world)
        best = metadata.get("best")
        self.best = None if best is None else (float(best[0]), int(best[1]))
        self.finished = bool(metadata.get("early"))  # there was reason to stop, and only the model was not written yet
        return saved[-1]

    def _describe(self) -> str:
        n = sum(p.numel() for p in self.state.learner.parameters())
        trained = sum(p.numel() for p in self.state.learner.parameters() if p.requires_grad)
        share = "" if trained == n else f", {trained:,} of them trained"
        return f"{n:,} parameters{share}"
