"""Weights & Biases and MLflow, through their own libraries: what a run logs goes there as well.

Each is a callback. Where a run goes is theirs to say, by their own variables: WANDB_PROJECT, WANDB_MODE,
MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and so on. A run that goes on, goes on there too.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vantage.errors import BadInput, unknown
from vantage.files import write_text
from vantage.training.log import ScoreRecord, StepRecord
from vantage.training.tables import flat

FILE = "tracking.json"  # in the folder of a run: what it is called there
PROJECT = "vantage"
SECONDS, MOST = 1.0, 900  # between two batches of figures for MLflow, which takes at most 1000 in one
LONGEST = 500  # letters of a parameter that every MLflow takes


def trackers(names: str | Iterable[str]) -> list[Any]:
    """The callbacks of these names."""
    return [TRACKERS[name]() for name in check_trackers(names)]


def check_trackers(names: str | Iterable[str]) -> list[str]:
    """These names, each once. One that nothing has is refused, and one whose library is not installed."""
    if not isinstance(names, (str, Iterable)):
        raise BadInput(f"track={names!r}: give {' or '.join(map(repr, TRACKERS))}, or a list of them")
    several = list(dict.fromkeys([names] if isinstance(names, str) else names))
    for name in several:
        if name not in TRACKERS:
            raise BadInput(f"track: {unknown('tracker', name, TRACKERS)}")
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, as wandb leaves behind, is none
            raise BadInput(f"track={name!r}: {name} is not installed. pip install 'vantage[{name}]'")
    return several


class WandbTracker:
    """A run of Weights & Biases; its figures are called as transformers calls them."""

    def __init__(self) -> None:
        self._wandb = importlib.import_module("wandb")
        self._run: Any = None

    def on_begin(self, run: Any) -> None:
        before = remembered(run.folder).get("wandb")
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.folder.name,
            dir=str(run.folder),
            config=run.origin["settings"],
            id=before,
            resume="allow",
        )
        remember(run.folder, "wandb", self._run.id)
        # a resumed run does some steps again: its own counter of calls would drop them
        self._run.define_metric("train/global_step")
        self._run.define_metric("*", step_metric="train/global_step")

    def on_step(self, record: StepRecord) -> None:
        self._run.log({"train/global_step": record.step, **step_figures(record)})

    def on_eval(self, records: list[ScoreRecord]) -> None:
        self._run.log({"train/global_step": records[0].step, **score_figures(records)})

    def on_end(self, trained: Any) -> None:
        self._run.finish()

    def on_error(self, error: BaseException) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)


class MlflowTracker:
    """A run of MLflow. Figures are sent in batches, about one a second."""

    def __init__(self) -> None:
        self._mlflow = importlib.import_module("mlflow")
        self._client: Any = None
        self._id = ""
        self._waiting: list[Any] = []
        self._sent = 0.0

    def on_begin(self, run: Any) -> None:
        self._client = self._mlflow.MlflowClient()
        before = remembered(run.folder).get("mlflow")
        if before is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self._mlflow.set_experiment(name).experiment_id
            self._id = self._client.create_run(experiment, run_name=run.folder.name).info.run_id
            remember(run.folder, "mlflow", self._id)
            parameters = {name: str(value)[:LONGEST] for name, value in flat(run.origin["settings"]).items()}
            entities = [self._mlflow.entities.Param(name, value) for name, value in parameters.items()]
            for low in range(0, len(entities), 100):  # the most that one call takes
                self._client.log_batch(self._id, params=entities[low : low + 100])
        else:
            self._id = before
            self._client.update_run(self._id, status="RUNNING")
        self._sent = time.monotonic()

    def on_step(self, record: StepRecord) -> None:
        self._add(step_figures(record), record.step)
        if time.monotonic() - self._sent > SECONDS or len(self._waiting) > MOST:
            self._send()

    def on_eval(self, records: list[ScoreRecord]) -> None:
        self._add(score_figures(records), records[0].step)
        self._send()

    def on_end(self, trained: Any) -> None:
        self._send()
        self._client.set_terminated(self._id, "FINISHED" if trained.finished else "KILLED")

    def on_error(self, error: BaseException) -> None:
        if self._id:
            self._send()
            self._client.set_terminated(self._id, "FAILED")

    def _add(self, figures: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._waiting += [self._mlflow.entities.Metric(_mlflow_name(n), v, now, step) for n, v in figures.items()]

    def _send(self) -> None:
        for low in range(0, len(self._waiting), MOST):
            self._client.log_batch(self._id, metrics=self._waiting[low : low + MOST])
        self._waiting, self._sent = [], time.monotonic()


TRACKERS: dict[str, Callable[[], Any]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}


def step_figures(record: StepRecord) -> dict[str, float]:
    return {"train/loss": record.loss, "train/learning_rate": record.lr, "train/grad_norm": record.norm}


def score_figures(records: list[ScoreRecord]) -> dict[str, float]:
    return {
        f"eval/{r.set}/{name}": value
        for r in records
        for name, value in (("loss", r.loss), ("tokens", r.tokens), ("exact", r.exact))
    }


def remembered(folder: Path) -> dict[str, str]:
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def remember(folder: Path, name: str, number: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FILE, json.dumps(remembered(folder) | {name: number}))


def _mlflow_name(name: str) -> str:
    """MLflow takes letters, digits and a few signs: a set is called "valid, 512 tokens"."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)
