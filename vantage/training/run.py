"""From settings to a run in a folder, and from a finished run to a model that can be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vantage.checkpoints.pull import find
from vantage.errors import BadInput, Refused, unknown
from vantage.families import opened, tokenizer_of
from vantage.model import Model
from vantage.training import checkpoint
from vantage.training.compiled import compiled_loss, in_precision, loss_of, recompute
from vantage.training.distributed import World, join, shard
from vantage.training.learners import Learner
from vantage.training.log import Reporter, ScoreRecord, SilentReporter
from vantage.training.loop import Loop, TrainState
from vantage.training.models import DataFacts, Loaded
from vantage.training.optimise.tensors import reshard, whole
from vantage.training.saved_model import save_trained
from vantage.training.settings import TrainSettings, read_settings, settings_of
from vantage.training.sources import OpenedData, OpenOptions, data_fingerprint

SETTINGS_FILE = "settings.json"


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
    ):
        self.settings, self.folder = settings, Path(folder)
        self.device = _device(device)
        self.world = join(self.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", self.world.local)
            torch.cuda.set_device(self.device)
        self.report: Reporter = report if report is not None and self.world.first else SilentReporter()
        self.origin = {"fingerprint": settings.fingerprint(), "data": data_fingerprint(settings.data)}
        _claim(self.folder, resume, self.origin, self.world)
        if settings.loop.batch % (self.world.size * settings.loop.accumulate):
            each = f"{self.world.size} processes and {settings.loop.accumulate} parts"
            raise BadInput(f"loop.batch = {settings.loop.batch} does not divide among {each}")
        if settings.loop.threads is not None:
            torch.set_num_threads(settings.loop.threads)
        opening = OpenOptions(
            settings.model.reads, settings.seed, settings.loop.batch, _tokenizer(settings), progress=progress
        )
        self.opened: OpenedData = settings.data.open(opening)
        self.requirements = DataFacts(self.opened.data.vocab, settings.seed, self.opened.classes)
        settings.model.check(self.requirements)
        watch = settings.evaluate.watch
        if watch is not None and watch not in self.opened.data.held_out():
            raise BadInput(f"evaluate.watch: {unknown('set', watch, self.opened.data.held_out())}")
        if table is not None and self.world.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / SETTINGS_FILE).write_text(json.dumps(table, indent=1))
        self.loop = self._loop()

    def _loop(self) -> Loop:
        s = self.settings
        learner = s.model.learner(self.requirements).to(self.device)
        blocks = _blocks(learner)
        if s.loop.recompute:
            if not blocks:
                raise Refused("loop.recompute: this model has no blocks to compute again; leave it out")
            recompute(blocks)
        half = torch.bfloat16 if s.loop.precision == "bfloat16" else None
        shard(learner, _unshared(blocks), self.world, self.device, half)
        logits = in_precision(learner, half if self.world.size == 1 else None)
        smoothing = s.loop.smoothing
        loss = compiled_loss(logits, smoothing, self.report.note) if s.loop.compile else loss_of(logits, smoothing)
        average = None if s.average is None else s.average.build(learner)
        state = TrainState(
            learner, self.opened.data, s.optimiser.build(learner), average, logits, loss, self.device, self.world
        )
        return Loop(s, state, self.folder, self.report, self.origin)

    def go(self) -> Trained:
        """Train to the end, or until ``loop.stop`` is set."""
        loop, state = self.loop, self.loop.state
        scores = loop.run()
        saved_to = None
        if loop.finished:
            loop.restore_best()
            if state.average is not None and not self.settings.evaluate.best:  # the best is an average already
                state.average.take()
            learner = self._gathered()
            if self.world.first:
                base = self.settings.model.source if isinstance(self.settings.model, Loaded) else None
                saved_to = save_trained(learner, self.opened, self.folder / "model", base)
            self.world.wait()
        core = state.learner.eval().core
        if isinstance(core, Model):
            core.tokenizer = self.opened.tokenizer
        return Trained(core, state.learner, self.folder, loop.step, loop.finished, scores, saved_to)

    def _gathered(self) -> Learner:
        """The learner, whole: with several processes its weights are collected in a new one."""
        learner = self.loop.state.learner
        if self.world.size == 1:
            return learner
        reshard(learner)
        state = {name: whole(value).cpu() for name, value in learner.state_dict().items()}
        fresh = self.settings.model.learner(self.requirements)
        fresh.load_state_dict(state)
        return fresh


def train(
    settings: str | Path | Mapping[str, Any] | TrainSettings,
    changes: Iterable[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: torch.device | str | None = None,
    report: Reporter | None = None,
) -> Trained:
    """Train a model as the settings say: a TOML file, the name of a recipe, a nested mapping, or ``TrainSettings``.

    ``changes`` are as on the command line: ``["loop.steps=500"]``. The run lives in the folder ``out`` (default:
    runs/NAME): its log, its checkpoints, and in the end the model, as ``vt.load`` reads it (an adapter and a recurrent
    model have loaders of their own, which it names). With ``resume`` it goes on from the last whole checkpoint there,
    and computes what it would have computed without the pause.
    """
    if not isinstance(settings, (str, Path, Mapping, TrainSettings)):
        raise BadInput(
            f"settings={settings!r}: give a TOML file, the name of a recipe, a nested mapping or TrainSettings"
        )
    if isinstance(changes, str) or not isinstance(changes, Iterable):
        raise BadInput(f"changes={changes!r}: give a list of words, as in ['loop.steps=500']")
    changes = list(changes)
    if not all(isinstance(change, str) for change in changes):
        raise BadInput(f"changes={changes!r}: give a list of words, as in ['loop.steps=500']")
    if not isinstance(out, (str, Path, type(None))):
        raise BadInput(f"out={out!r}: give the name of a folder")
    table: Mapping[str, Any] | None = None
    if isinstance(settings, (str, Path)):
        parsed, table = read_settings(settings, changes)
        out = Path("runs") / Path(settings).stem if out is None else out
    elif isinstance(settings, TrainSettings):
        parsed = settings
    else:
        table = dict(settings)
        parsed = settings_of(dict(settings))
    if not isinstance(settings, (str, Path)) and changes:
        raise BadInput("changes are for settings from a file: change the mapping itself")
    if out is None:
        raise BadInput("give out=, the folder for the log, the checkpoints and the model")
    return Run(parsed, out, table=table, resume=resume, device=device, report=report).go()


# ---- inside


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as e:
        raise BadInput(f"device={device!r}: torch knows no such device; use cpu or cuda") from e
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"device={device!r}: there is no GPU here that torch can use; leave it out, or use cpu")
    return chosen


def _claim(folder: Path, resume: bool, origin: Mapping[str, str], world: World) -> None:
    """Refuse a folder that holds a run already, unless that run is to go on with the same settings and data."""
    saved = checkpoint.steps(folder / "checkpoints")
    if (saved or (folder / "log.jsonl").exists()) and not resume:
        raise BadInput(f"{folder} holds a run already: go on with it (--resume), or choose another folder (--out)")
    before = checkpoint.metadata(folder / "checkpoints", saved[-1]) if saved else origin
    if before.get("fingerprint") != origin["fingerprint"]:
        raise BadInput(f"{folder} holds a run with other settings: give the same ones, or another folder with --out")
    if before.get("data", origin["data"]) != origin["data"]:
        raise BadInput(
            f"{folder} holds a run on other data: a file that [data] names has changed. Bring it back, or train anew "
            "in another folder with --out"
        )
    if resume and not folder.exists():
        raise BadInput(f"there is no run in {folder} to go on with")
    world.wait()


def _tokenizer(settings: TrainSettings) -> Any:
    """The tokenizer of a model that is loaded; its weights can wait."""
    if not isinstance(settings.model, Loaded):
        return None
    return tokenizer_of(opened(find(settings.model.source), torch.float32))


def _blocks(learner: nn.Module) -> list[nn.Module]:
    """The blocks of every transformer in it: what is computed again, and shared out, one at a time."""
    models = [module for module in learner.modules() if isinstance(module, Model)]
    return [block for model in models for block in model.blocks]


def _unshared(blocks: list[nn.Module]) -> list[nn.Module]:
    """The blocks that share no parameter with another (T5's layers share their bias): those go with the whole."""
    seen: dict[Tensor, int] = {}
    for block in blocks:
        for p in block.parameters():
            seen[p] = seen.get(p, 0) + 1
    return [block for block in blocks if all(seen[p] == 1 for p in block.parameters())]
