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
from vantage.training.batch import Batch, Data, DataEnded
from vantage.training.callbacks import Callbacks
from vantage.training.distributed import World
from vantage.training.divergence import Diverged, LossMonitor, save_batch
from vantage.training.evaluate import evaluate
from vantage.training.learners import Learner
from vantage.training.log import Reporter, ScoreRecord, StepRecord, TrainLog, read_log
from vantage.training.memory import keep_freed_memory
from vantage.training.mesh_shares import MeshShares
from vantage.training.optimise import Averaged, Optimiser
from vantage.training.optimise.tensors import reshard, whole
from vantage.training.sections import Best
from vantage.training.settings import TrainSettings
from vantage.training.train_step import StepResult, TrainStep


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
    ahead: bool = True  # whether the data bear another thread
    shares: MeshShares | None = None  # where the model lies over processes
    describe: Callable[[Path], None] | None = None  # writes into a checkpoint what vt.load needs to know of the model


@dataclass(frozen=True)
class _PendingStep:
    """A step that was done, and what is known of it once the device has got so far."""

    step: int
    batches: list[Batch]
    result: StepResult


class Loop:
    """One run in its folder. ``stop`` may be set from outside (Ctrl-C): the step is finished, and the state saved."""

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        folder: Path,
        report: Reporter,
        origin: Mapping[str, Any],
        callbacks: Callbacks,
    ):
        self.settings, self.state, self.folder, self.report = settings, state, folder, report
        self.callbacks = callbacks
        self.origin = origin  # what a run must have in common with one that goes on with it
        self.step = 0
        self.stop = False
        self.finished = False  # the last step was done, or there was reason to stop early
        self.ended: str | None = None  # why there are no more steps: a callback said so, or the data ended
        self.train_step = TrainStep(settings, state, lambda text: self.report.note(text))
        self.best: Best | None = None
        self._rows_before: int | None = None  # that a run which goes on computed at a time
        self.scores: list[ScoreRecord] = []

    # ---- the run

    def run(self, begin: Callable[[], object] = lambda: None) -> list[ScoreRecord]:
        """Train to the end, or until somebody says stop. The last scores. ``begin`` is called before the first step."""
        s, state = self.settings, self.state
        self.step = self._resume()
        log = TrainLog(self.folder, self.step) if state.world.first else None
        state.world.wait()  # all read the same log: who watches alone stops alone
        recent, scores = read_log(self.folder)
        self.scores = [score for score in scores if score.step == self.step]
        monitor = LossMonitor(s.guard, [record.loss for record in recent])
        self.report.begun(self.step, s.loop.steps, self._describe())
        # there was reason to stop, and only the model was not written yet; other settings may see none
        self.finished = self.step >= s.loop.steps or (self.finished and self._why_enough() is not None)
        try:
            if not self.finished:
                self._check_longest_test()
                begin()
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
            if self.train_step.chosen and self.train_step.rows is None:
                self.train_step.choose_rows(batches[0], self._rows_before)
            pending.append(_PendingStep(step, batches, self.train_step(step, batches)))
            self.step = step + 1
            due = self._due()
            while pending and len(pending) > (0 if due or self.ended is not None else lag):
                clock = self._record(pending.pop(0), clock, log, monitor)
            if (due or self.ended is not None) and self._after_step(log):
                return
        # an iterator that can be read once had fewer examples than there were steps
        for left in pending:
            clock = self._record(left, clock, log, monitor)
        self._after_step(log)

    def _record(self, pending: _PendingStep, clock: float, log: TrainLog | None, monitor: LossMonitor) -> float:
        """Read the numbers of a step, check them, write them down."""
        s = self.settings
        result = pending.result
        loss, norm = float(result.loss), float(result.norm)
        why = monitor.problem(loss, norm)
        if why is not None:
            self._diverged(pending, loss, why)
        now = time.perf_counter()
        lr = s.schedule.at(pending.step) * s.optimiser.lr
        record = StepRecord(pending.step + 1, loss, lr, norm, result.targets, now - clock)
        if log:
            log.stepped(record)
        self.report.stepped(record)
        self._tell("on_step", record)
        return now

    def _due(self) -> bool:
        """Whether something happens between this step and the next."""
        s = self.settings
        every = (s.evaluate.every, s.save.every)
        last = self.step >= s.loop.steps
        return last or self.stop or self.state.world.several or any(n and self.step % n == 0 for n in every)

    def _after_step(self, log: TrainLog | None) -> bool:
        """What happens between two steps; whether this was the last."""
        s = self.settings
        self._agree_on_end()
        last = self.step >= s.loop.steps
        why = None
        if last or self.ended is not None or (s.evaluate.every and self.step % s.evaluate.every == 0):
            try:
                self._evaluate(log)
            except Exception:
                if not self.state.world.several:  # of several, one alone would wait for the others for ever
                    self.save()  # whatever is wrong with a test, what was trained is kept
                raise
            why = self._why_enough()
        self._agree_on_end()
        stop = self.state.world.agree(self.stop, self.state.device)
        why = why or self.ended
        self.finished = last or why is not None
        if self.finished or stop or (s.save.every and self.step % s.save.every == 0):
            self.save()
        if why is not None and not last:
            self.report.note(f"stopped early after {self.step} steps: {why}")
        return self.finished or stop

    def _diverged(self, pending: _PendingStep, loss: float, why: str) -> None:
        step, batches = pending.step, pending.batches
        saved = checkpoint.steps(self.folder / "checkpoints")
        world = self.state.world
        where = save_batch(self.folder, step + 1, batches, why, world.rank if world.several else None)
        back = f"the last checkpoint is of step {saved[-1]}" if saved else "there is no checkpoint yet"
        ways = "Start again with a lower optimiser.lr"
        if isfinite(loss) and isfinite(float(pending.result.norm)):
            ways += ", or continue anyway: --resume guard.spike=0"
        raise Diverged(f"stopped at step {step + 1}: {why}. The batch is in {where}; {back}. {ways}")

    # ---- batches

    def _batches(self) -> Iterator[tuple[int, list[Batch]]]:
        """Each step's batches, made while the step before is computed where the data bear that."""
        with ThreadPoolExecutor(1) as pool:
            ahead: Future[list[Batch]] | None = None
            for step in range(self.step, self.settings.loop.steps):
                try:
                    batches = self._make_batches(step) if ahead is None else ahead.result()
                except DataEnded as e:
                    self.ended = str(e)
                    return
                more = self.state.ahead and step + 1 < self.settings.loop.steps
                ahead = pool.submit(self._make_batches, step + 1) if more else None
                yield step, batches

    def _make_batches(self, step: int) -> list[Batch]:
        loop, world = self.settings.loop, self.state.world
        first, count = step * loop.batch, 1 if loop.accumulate == "auto" else loop.accumulate
        each = loop.batch // count
        parts = [range(first + i * each, first + (i + 1) * each) for i in range(count)]
        batches = list[Batch]()
        for part in parts:
            try:
                batches.append(self.state.data.batch(world.share(part)))
            except DataEnded:
                if not batches:
                    raise
        return batches

    # ---- evaluation

    def _evaluate(self, log: TrainLog | None) -> None:
        state = self.state
        with state.average.swap() if state.average is not None else contextlib.nullcontext():
            self.scores = evaluate(state.learner, state.logits, state.data.held_out(), self.step, state.device)
            self._track_best()
            if not self.scores:  # there is nothing to evaluate on
                return
            if log:
                log.scored(self.scores)
            self.report.scored(self.scores)
            state.learner.eval()  # a callback may want to see what was evaluated at work
            self._tell("on_eval", self.scores)
            state.learner.train()

    def _track_best(self) -> None:
        """Remember the best figure of the watched set, and the weights that had it if they are wanted."""
        state, evaluate, before = self.state, self.settings.evaluate, self.best
        self.best = evaluate.improved(before, self.scores)
        better = self.best is not None and (before is None or self.best.value != before.value)
        if better and evaluate.keeps_best:
            weights = self._stored(self._weights())
            checkpoint.write(self.folder / "best", self.step, weights, {}, state.world, state.describe)
            checkpoint.prune(self.folder / "best", 1, state.world)

    def restore_best(self) -> None:
        """Put the best weights into the model, if those were asked for."""
        saved = checkpoint.steps(self.folder / "best") if self.settings.evaluate.keeps_best else []
        if saved:
            checkpoint.verified_metadata(self.folder / "best", saved[-1])
            self._read(self.folder / "best", saved[-1], self._weights())

    def _why_enough(self) -> str | None:
        return self.settings.evaluate.why_enough(self.best, self.scores)

    def _agree_on_end(self) -> None:
        """Callbacks run in the first process alone: the others end with it."""
        if self.state.world.agree(self.ended is not None, self.state.device) and self.ended is None:
            self.ended = "another process ended the run"

    def _tell(self, event: str, value: object) -> None:
        """Call the callbacks. Whatever goes wrong there, what was trained is kept."""
        try:
            self.ended = self.callbacks.tell(event, value) or self.ended
        except Exception:
            if event == "on_step" and not self.state.world.several:
                self.save()
            raise

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

    def _stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """As a checkpoint has them: whole, wherever the model lies. Then the first process alone has them."""
        return tensors if self.state.shares is None else self.state.shares.whole(tensors)

    def _read(self, folder: Path, step: int, into: dict[str, Tensor]) -> None:
        shares = self.state.shares
        if shares is None:
            checkpoint.read(folder, step, into, self.state.world)
        else:
            checkpoint.read_shares(folder, step, into, shares)

    def save(self) -> None:
        folder = self.folder / "checkpoints"
        best = None if self.best is None else list(self.best)
        early = self.finished and self.step < self.settings.loop.steps
        metadata = {**self.origin, "best": best, "early": early, "frozen": self._frozen, "rows": self.train_step.rows}
        state = self.state
        where = checkpoint.write(folder, self.step, self._stored(self.tensors()), metadata, state.world, state.describe)
        checkpoint.prune(folder, self.settings.save.keep, state.world)
        self.report.saved(where)
        self._tell("on_save", where)

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
        self._read(folder, saved[-1], self.tensors())
        best = metadata.get("best")
        # earlier versions wrote two numbers: patience compared with the best itself
        self.best = (
            None if best is None else Best(float(best[0]), int(best[1]), float(best[-1] if best[2:] else best[0]))
        )
        self._rows_before = metadata.get("rows")
        self.finished = bool(metadata.get("early"))
        return saved[-1]

    def _describe(self) -> str:
        n = sum(p.numel() for p in self.state.learner.parameters())
        trained = sum(p.numel() for p in self.state.learner.parameters() if p.requires_grad)
        share = "" if trained == n else f", {trained:,} of them trained"
        return f"{n:,} parameters{share}"
