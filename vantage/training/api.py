"""``vt.train``: a run from settings, or from a model and data of one's own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch

from vantage.errors import BadInput
from vantage.model import Model
from vantage.spec.model import ModelSpec
from vantage.training.callbacks import Callbacks, listed
from vantage.training.collect import data_section, rows_in_first, tokenizer_of
from vantage.training.examples import Asked, ExampleData, RowReader, kind_of
from vantage.training.log import Reporter
from vantage.training.models import ModelObject
from vantage.training.progress import ProgressBar
from vantage.training.promises import promise_note
from vantage.training.run import Run, Trained
from vantage.training.sequences import Reads
from vantage.training.settings import LoopSettings, TrainSettings, settings_of
from vantage.training.sources import Text
from vantage.training.tables import OBJECT, run_folder, table_of
from vantage.training.track import trackers

Settings = str | Path | Mapping[str, Any] | TrainSettings
# Where each argument stands in the settings.
PLACES = {
    "steps": "loop.steps",
    "batch_size": "loop.batch",
    "batch_tokens": "loop.batch_tokens",
    "gradient_accumulation_steps": "loop.accumulate",
    "lr": "optimiser.lr",
    "eval_steps": "evaluate.every",
    "save_steps": "save.every",
    "patience": "evaluate.patience",
    "min_delta": "evaluate.min_delta",
    "seed": "seed",
    "tensor_parallel": "parallel.tensor",
    "context_parallel": "parallel.context",
    "expert_parallel": "parallel.experts",
}


def train(
    model: Model | ModelSpec | Settings | None = None,
    data: Any = None,
    *,
    settings: Settings | None = None,
    changes: Iterable[str] = (),
    eval_data: Any = None,
    tokenizer: Any = None,
    max_length: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    gradient_accumulation_steps: int | Literal["auto"] | None = None,
    lr: float | None = None,
    eval_steps: int | None = None,
    save_steps: int | None = None,
    patience: int | None = None,
    min_delta: float | None = None,
    seed: int | None = None,
    tensor_parallel: int | None = None,
    context_parallel: int | None = None,
    expert_parallel: int | None = None,
    out: str | Path | None = None,
    resume: bool | str | Path = False,
    device: torch.device | str | None = None,
    callbacks: Any = (),
    track: str | Iterable[str] = (),
    report: Reporter | None = None,
) -> Trained:
    """Train a model: ``vt.train(model, data, steps=500)``. Or as settings say: ``vt.train("copy", ["loop.steps=9"])``.

    model: a model, which is trained in place, or a spec (``vt.decoder(...)``). Or settings, in its place: a TOML file,
        the name of a recipe, a nested mapping or TrainSettings; the second argument is then a list of changes.
    data: a task (its name or an object), a text (a file's name, or the text itself), or examples: a list, a dataset, a
        DataLoader or any iterable of token tensors, of dicts with ``input_ids`` and, if there are any, ``labels`` (-100
        is not asked for) and ``attention_mask``, or of texts. What has a length is shuffled; the rest keeps its order.
    settings: everything else, by section, as in {"schedule": {"is": "cosine", "warmup": 50}}. A model and data that are
        given as well take the place of its sections.
    changes: changes to settings from a file, as on the command line: ["loop.steps=500"].
    eval_data: what to evaluate on, in any of those forms; several by name ({"short": ..., "long": ...}); or the share
        of the data that is kept for it. A task brings its own.
    tokenizer: for texts; default: the model's. One of Vantage, transformers or tokenizers, a folder, or "bytes".
    max_length: tokens at which examples are cut, and of the windows of a text.
    steps, epochs: how long; an epoch is all of the data once. Default: 1000 steps.
    batch_size, batch_tokens: rows of a step, or about how many tokens. Default: what a DataLoader gives, or 64 rows.
    gradient_accumulation_steps: parts that a batch is computed in; "auto": as few as fit into memory.
    lr: the learning rate. Default: 3e-4.
    eval_steps, save_steps: steps between evaluations (default: at the end alone) and between checkpoints (500).
    patience, min_delta: stop after so many evaluations without a loss that is better by more than min_delta; the model
        with the best loss is kept.
    seed: of new weights, the order of the data and dropout. Default: 0.
    tensor_parallel, context_parallel, expert_parallel: how many of the processes that torchrun has started share the
        heads and columns, the tokens of a row, the experts. The rest have rows of their own. Default: 1 each.
    out: the folder of the run. Default: runs/NAME after a recipe or file, else runs/train-1, -2, and so on.
    resume: go on from the last checkpoint in that folder, to the bit; more steps make a finished run longer. A run from
        settings needs nothing else: vt.train(resume="runs/copy", steps=2000).
    device: "cpu", "cuda" or "mps". Default: a GPU where torch finds one.
    callbacks: functions called with every StepRecord, or objects with some of on_begin, on_step, on_eval, on_save,
        on_end and on_error. One that returns True ends the training.
    track: "wandb" or "mlflow", or both in a list, where they are installed.
    report: what is told how the run goes (``vantage.training.Reporter``). Default: a bar, where one is seen.
    """
    options = {name: value for name, value in locals().items() if name in PLACES and value is not None}
    own = listed(callbacks)
    Callbacks(own)  # what is wrong with them is said before anything is done
    following = trackers(track)
    if isinstance(model, (str, Path, Mapping, TrainSettings)):
        settings, changes, model, data = _settings_first(model, data, settings, changes)
    if isinstance(resume, (str, Path)):
        out = resume if out is None else out
        settings = resume if settings is None and model is None else settings
    _check(model, settings, out, resume)
    changed = _change_list(changes, settings)
    nothing_else = not options and all(one is None for one in (model, data, eval_data, tokenizer, max_length, epochs))
    if isinstance(settings, TrainSettings) and nothing_else:
        parsed, table = settings, None
    else:
        table = _table(settings, changed)
        if model is not None or data is not None:
            _lay_over(table, model, data, eval_data, tokenizer, max_length)
        elif eval_data is not None or tokenizer is not None or max_length is not None:
            raise BadInput("eval_data, tokenizer and max_length are for data from Python: settings have their own")
        _defaults(table, options, epochs)
        for name, value in options.items():
            _put(table, PLACES[name], value)
        parsed = settings_of(table)
    folder = _folder(out, settings)
    with ProgressBar() as bar:
        run = Run(
            parsed,
            folder,
            table=None if table is None else _written(table),
            resume=bool(resume),
            device=device,
            report=bar if report is None else report,
            callbacks=[*following, *own],  # a step is tracked before one of the caller's fails
        )
        if isinstance(settings, (str, Path)) and model is None and data is None:
            asked = [f"{PLACES[name]}={value}" for name, value in options.items()]
            if (note := promise_note(settings, [*changed, *asked])) is not None:
                run.report.note(note)
        return run.go()


# ---- what was said, as a table of settings


def _settings_first(
    first: Settings, second: Any, settings: Settings | None, changes: Iterable[str]
) -> tuple[Settings, Any, None, None]:
    """``vt.train(settings, changes)``."""
    if settings is not None:
        raise BadInput(f"settings={settings!r:.60} and {first!r:.60} are both settings: give one")
    if second is None:
        return first, changes, None, None
    if not isinstance(second, Iterable) or isinstance(second, Mapping) or changes:
        raise BadInput(
            f"after settings comes a list of changes, as in ['loop.steps=500'], and this is {kind_of(second)}. To "
            "train on data of your own write vt.train(model, data, settings=...)"
        )
    return first, second, None, None


def _check(model: Any, settings: Any, out: Any, resume: Any) -> None:
    if model is None and not isinstance(settings, (str, Path, Mapping, TrainSettings)):
        raise BadInput(
            f"settings={settings!r:.80}: give a TOML file, the name of a recipe, a nested mapping or TrainSettings; or "
            "a model and data, as in vt.train(model, data)"
        )
    if model is not None and not isinstance(model, (Model, ModelSpec)):
        raise BadInput(
            f"model is {kind_of(model)}: give a model of Vantage (vt.build, vt.load), a spec (vt.decoder) or settings. "
            "vt.load makes one of a model of transformers"
        )
    if not isinstance(out, (str, Path, type(None))):
        raise BadInput(f"out={out!r}: give the name of a folder")


def _change_list(changes: Any, settings: Any) -> list[str]:
    if isinstance(changes, str) or not isinstance(changes, Iterable):
        raise BadInput(f"changes={changes!r}: give a list of words, as in ['loop.steps=500']")
    listed = list(changes)
    if not all(isinstance(change, str) for change in listed):
        raise BadInput(f"changes={listed!r}: give a list of words, as in ['loop.steps=500']")
    if listed and not isinstance(settings, (str, Path)):
        raise BadInput("changes are for settings from a file: change the mapping itself")
    return listed


def _table(settings: Settings | None, changes: list[str]) -> dict[str, Any]:
    if isinstance(settings, (str, Path)):
        return table_of(settings, changes)
    if isinstance(settings, TrainSettings):
        return {f.name: getattr(settings, f.name) for f in fields(settings)}
    return copy.deepcopy(dict(settings or {}))


def _lay_over(
    table: dict[str, Any], model: Any, data: Any, eval_data: Any, tokenizer: Any, max_length: int | None
) -> None:
    """Put a model and data from Python in the place of the settings' sections."""
    if data is None and "data" not in table:
        raise BadInput("there is a model and no data: give a task, a text, or examples, as in vt.train(model, 'copy')")
    if model is None:
        raise BadInput("there are data and no model: give a model or a spec first, as in vt.train(model, data)")
    # of a spec a model is built
    trained, spec = (model, model.spec) if isinstance(model, Model) else (None, model)
    encoder, vocabulary = tokenizer_of(tokenizer if tokenizer is not None or trained is None else trained.tokenizer)
    asked: Asked = "answer" if spec.encoder is not None else "next" if spec.causal else "hidden"
    start = None if trained is None else (trained.config or {}).get("decoder_start_token_id")
    if data is not None:
        reader = RowReader(asked, spec.vocab, max_length, encoder, start)
        table["data"] = data_section(data, eval_data, spec, reader, max_length=max_length, vocabulary=vocabulary)
    table["model"] = ModelObject(spec, _reads(spec, table["data"]), trained, encoder)


def _reads(spec: ModelSpec, data: Any) -> Reads:
    """How an example of a task or a text is put before this model."""
    if spec.encoder is not None:
        return "pair"
    if spec.causal:
        return "line"
    is_text = isinstance(data, Text) or (isinstance(data, Mapping) and data.get("is") == "text")
    return "label" if spec.head is None or is_text else "ask"


def _defaults(table: dict[str, Any], options: dict[str, Any], epochs: float | None) -> None:
    """What follows from the data: the rows of a batch that a DataLoader has made, and how many steps an epoch has."""
    data = table.get("data")
    examples = data if isinstance(data, ExampleData) else None
    if examples is not None and examples.count is None and not {"batch_size", "batch_tokens"} & set(options):
        rows = rows_in_first(examples)
        if rows > 1:
            options["batch_size"] = rows
    if epochs is None:
        return
    if "steps" in options:
        raise BadInput("steps and epochs both say how long to train: give one")
    if not epochs > 0:
        raise BadInput(f"epochs={epochs}: give a number above 0")
    loop = table.get("loop", {})
    batch = options.get("batch_size") or (
        loop.batch if isinstance(loop, LoopSettings) else loop.get("batch", LoopSettings.batch)
    )
    count = None if examples is None else examples.count or _rows_of_loader(examples, batch)
    if count is None or "batch_tokens" in options:
        raise BadInput("epochs needs examples whose number is known, and batch_size: give steps")
    options["steps"] = max(1, ceil(epochs * count / batch))


def _rows_of_loader(examples: ExampleData, batch: int) -> int | None:
    """The rows of an iterable that says how many batches it has, if each of them is a batch here."""
    sized = hasattr(type(examples.examples), "__len__") and rows_in_first(examples) == batch
    return len(examples.examples) * batch if sized else None


def _put(table: dict[str, Any], place: str, value: Any) -> None:
    """Set one setting, in a section that is a table, the name of a part, or the part itself."""
    section, _, name = place.rpartition(".")
    if not section:
        table[name] = value
        return
    inside = table.get(section, {})
    if isinstance(inside, Mapping):
        table[section] = {**inside, name: value}
    elif isinstance(inside, str):
        table[section] = {"is": inside, name: value}
    else:
        table[section] = replace(inside, **{name: value})


def _folder(out: str | Path | None, settings: Any) -> Path:
    if out is not None:
        return Path(out)
    if isinstance(settings, (str, Path)):
        return run_folder(settings)
    numbers = (number for number in range(1, 10_000) if not Path("runs", f"train-{number}").exists())
    return Path("runs", f"train-{next(numbers)}")


def _written(table: dict[str, Any]) -> dict[str, Any]:
    """The table for the run's folder; what only Python can make is called that."""
    return {name: OBJECT if is_dataclass(section) else section for name, section in table.items()}
