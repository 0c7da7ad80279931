"""From settings to a run in a folder, and from a finished run to a model that can be loaded."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vantage.checkpoints.pull import find
from vantage.errors import BadInput, Refused, unknown
from vantage.families import opened, tokenizer_of
from vantage.parallel import ContextParallel
from vantage.spec.devices import chosen_device
from vantage.spec.model import ModelSpec
from vantage.training.batch import Batch
from vantage.training.callbacks import Callbacks
from vantage.training.compiled import Logits, compiled_loss, in_precision, loss_of, recompute, recompute_no_more
from vantage.training.context_tokens import ContextTokens
from vantage.training.distributed import World, blocks_of, join, shard, unshared
from vantage.training.example_data import StreamedRows
from vantage.training.learners import Classifier, Learner
from vantage.training.log import Reporter, ScoreRecord, SilentReporter
from vantage.training.loop import Loop, TrainState
from vantage.training.mesh_shares import divided_learner
from vantage.training.models import DataFacts, Loaded, ModelObject, learner_of
from vantage.training.optimise.tensors import reshard, whole
from vantage.training.resume import claim
from vantage.training.saved_model import describe_model, save_trained
from vantage.training.settings import LoopSettings, TrainSettings, settings_table
from vantage.training.sources import OpenedData, OpenOptions, data_fingerprint
from vantage.training.tables import SETTINGS_FILE

LOOKED_AT = 64  # examples, for how long rows are


@dataclass(frozen=True)
class Trained:
    """What a run has come to. ``model`` is the trained model; ``kept`` where it was saved, once the run is finished."""

    model: nn.Module
    learner: Learner
    folder: Path
    step: int
    finished: bool
    scores: list[ScoreRecord]
    kept: Path | None

    def __str__(self) -> str:
        """Without the modules, which are pages long."""
        last = {score.set: score for score in self.scores}  # of each set
        lines = [
            f"{score.set}: loss {score.loss:.4f}, {score.tokens:.1%} of tokens right, {score.exact:.1%} of rows exact"
            for score in last.values()
        ]
        where = f"the model is in {self.kept}" if self.kept is not None else f"the run is in {self.folder}"
        return "\n".join([f"{'done' if self.finished else 'stopped'} after {self.step} steps; {where}", *lines])


class Run:
    """A run that is ready to go. Nothing is trained before ``go``."""

    def __init__(
        self,
        settings: TrainSettings,
        folder: str | Path,
        *,
        table: Mapping[str, Any] | None = None,
        resume: bool = False,
        device: torch.device | str | None = None,
        report: Reporter | None = None,
        progress: Callable[[int, int], None] | None = None,
        callbacks: Sequence[Any] = (),
    ):
        self.settings, self.folder = settings, Path(folder)
        self.device = chosen_device(device)
        self.world = join(self.device, settings.parallel)
        if self.device.type == "cuda":
            if self.world.local >= (gpus := torch.cuda.device_count()):
                raise BadInput(
                    f"process {self.world.local} of this machine has no GPU to itself, there are {gpus}: start as many "
                    "processes as there are GPUs, or say --device cpu"
                )
            self.device = torch.device("cuda", self.world.local)
            torch.cuda.set_device(self.device)
        self.report: Reporter = report if report is not None and self.world.first else SilentReporter()
        self.callbacks = Callbacks(callbacks if self.world.first else ())
        self.origin = {
            "fingerprint": settings.fingerprint(),
            "data": data_fingerprint(settings.data),
            "settings": json.loads(json.dumps(settings_table(settings), default=repr)),
        }
        check_processes(settings, self.world)
        if note := claim(self.folder, resume, settings, self.origin, self.world):
            self.report.note(note)
        if settings.loop.threads is not None:
            torch.set_num_threads(settings.loop.threads)
        opening = OpenOptions(
            settings.model.reads, settings.seed, settings.loop.batch, _tokenizer(settings), progress=progress
        )
        self.opened: OpenedData = settings.data.open(opening)
        if self.world.several and isinstance(self.opened.data, StreamedRows):
            raise Refused("several processes share out examples by their number: give data with a length, as a list")
        settings = self.settings = replace(settings, loop=_in_rows(settings.loop, self.opened))
        self.requirements = DataFacts(self.opened.data.vocab, settings.seed, self.opened.classes)
        settings.model.check(self.requirements)
        if self.opened.note:
            self.report.note(self.opened.note)
        watch = settings.evaluate.watch
        if watch is not None and watch not in self.opened.data.held_out():
            raise BadInput(f"evaluate.watch: {unknown('set', watch, self.opened.data.held_out())}")
        if table is not None and self.world.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / SETTINGS_FILE).write_text(json.dumps(table, indent=1))
        self.loop = self._loop()

    def _loop(self) -> Loop:
        s = self.settings
        shares = None
        if self.world.cut:
            learner, shares = divided_learner(s, self.requirements, self.world)
        else:
            learner = learner_of(s.model, self.requirements)
        learner.to(self.device)
        spec = learner.core.spec if shares is None else shares.share.spec
        blocks = blocks_of(learner)
        if s.loop.recompute:
            if not blocks:
                raise Refused("loop.recompute: this model has no blocks to compute again; leave it out")
            if self.world.context > 1 and isinstance(spec, ModelSpec) and any(shape.states for shape, _ in spec.caches):
                raise Refused(
                    "loop.recompute is not for layers with a state over parallel.context: leave one of them out"
                )
            recompute(blocks)
        half = torch.bfloat16 if s.loop.precision == "bfloat16" else None
        shard(learner, unshared(blocks), self.world, half)
        logits, loss = self._computed(learner, half if self.world.shards == 1 else None)
        average = None if s.average is None else s.average.build(learner)
        state = TrainState(
            learner,
            self.opened.data,
            s.optimiser.build(learner),
            average,
            logits,
            loss,
            self.device,
            self.world,
            self.opened.ahead,
            shares,
            functools.partial(describe_model, learner, spec, self.opened.tokenizer),
        )
        return Loop(s, state, self.folder, self.report, self.origin, self.callbacks)

    def _computed(self, learner: Learner, half: torch.dtype | None) -> tuple[Logits, Callable[[Batch], Tensor]]:
        """How logits and the loss of a batch come about."""
        loop, parallel = self.settings.loop, self.settings.parallel
        if self.world.context > 1:
            over = ContextParallel(self.world.group("context"), cut=parallel.cut, exchange=parallel.exchange)
            tokens = ContextTokens(learner, over, loop.smoothing)
            return tokens.logits, tokens.loss
        logits = in_precision(learner, half)
        if loop.compile:
            return logits, compiled_loss(logits, loop.smoothing, self.report.note)
        return logits, loss_of(logits, loop.smoothing)

    @property
    def model(self) -> nn.Module:
        """The model that is being trained."""
        return self.loop.state.learner.core

    def stop(self) -> None:
        """End the run after the step that is being computed: it is saved, and can go on later."""
        self.loop.stop = True

    def go(self) -> Trained:
        """Train to the end, or until ``stop`` is called."""
        begun = False

        def begin() -> None:
            nonlocal begun
            begun = True
            self.callbacks.tell("on_begin", self)

        try:
            trained = self._train(begin)
        except BaseException as e:
            if begun:
                self.callbacks.tell("on_error", e)
            raise
        if begun:
            self.callbacks.tell("on_end", trained)
        return trained

    def _train(self, begin: Callable[[], None]) -> Trained:
        loop, state = self.loop, self.loop.state
        scores = loop.run(begin)
        saved_to = None
        if loop.finished:
            loop.restore_best()
            if state.average is not None and not self.settings.evaluate.keeps_best:  # the best is an average already
                state.average.take()
            learner = self._gathered()
            if learner is not None:
                base = self.settings.model.source if isinstance(self.settings.model, Loaded) else None
                saved_to = save_trained(learner, self.opened, self.folder / "model", base, step=loop.step)
            self.world.wait()
        if self.settings.loop.recompute:
            recompute_no_more(blocks_of(state.learner))
        core = state.learner.eval().core
        core.tokenizer = self.opened.tokenizer
        if isinstance(state.learner, Classifier):
            state.learner.labels = self.opened.labels
        return Trained(core, state.learner, self.folder, loop.step, loop.finished, scores, saved_to)

    def _gathered(self) -> Learner | None:
        """The learner, whole: of several processes the first collects its weights in a new one, to save it."""
        learner, shares = self.loop.state.learner, self.loop.state.shares
        if not self.world.several:
            return learner
        if shares is not None:
            return shares.whole_learner(lambda model: self.settings.model.around(model, self.requirements))
        reshard(learner)
        state: dict[str, Tensor] = {}
        for name, value in learner.state_dict().items():
            full = whole(value)
            if self.world.first:
                state[name] = full.cpu()
        if not self.world.first:
            return None
        fresh = learner_of(self.settings.model, self.requirements)
        fresh.load_state_dict(state)
        return fresh


# ---- inside


def check_processes(settings: TrainSettings, world: World) -> None:
    """Refuse what several processes cannot divide among them."""
    batch, accumulate, size = settings.loop.batch, settings.loop.accumulate, world.size
    if world.several and accumulate == "auto":
        raise Refused("loop.accumulate = 'auto' is for one process: give a number where there are several")
    if world.several and isinstance(settings.model, ModelObject) and settings.model.model is not None:
        raise Refused("several processes build the model themselves: give its spec, or settings (model.is = 'loaded')")
    if (world.cut or world.context > 1) and settings.loop.compile:
        raise Refused("loop.compile is not for parallel.tensor, context or experts: leave it out")
    if world.context > 1 and settings.loop.recompute and settings.parallel.exchange == "ring":
        raise Refused(
            "loop.recompute is not for parallel.exchange = 'ring', which knows the keys of a pass by its positions: "
            "use 'gather'"
        )
    if accumulate != "auto" and batch % (size * accumulate):
        raise BadInput(f"loop.batch = {batch} does not divide among {size} processes and {accumulate} parts")


def _in_rows(loop: LoopSettings, opened: OpenedData) -> LoopSettings:
    """The settings with a batch in rows, where it was said in tokens."""
    if loop.batch_tokens is None:
        return loop
    if isinstance(opened.data, StreamedRows):
        raise Refused("a batch in tokens needs data with a length, to see how long rows are: give batch_size, in rows")
    width = opened.data.batch(range(LOOKED_AT)).tokens.shape[1]
    rows = max(1, loop.batch_tokens // width)
    if loop.accumulate != "auto":
        rows = max(1, rows // loop.accumulate) * loop.accumulate
    return replace(loop, batch=rows)


def _tokenizer(settings: TrainSettings) -> Any:
    """The tokenizer of a model that is loaded or comes from Python; weights can wait."""
    if isinstance(settings.model, ModelObject):
        return settings.model.tokenizer
    if not isinstance(settings.model, Loaded):
        return None
    return tokenizer_of(opened(find(settings.model.source), torch.float32))
