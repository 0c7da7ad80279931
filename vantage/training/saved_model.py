"""A trained model on disk, as ``vt.load`` reads it; an adapter, a recurrent model or a classifier in its own layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vantage.checkpoints.file_names import CONFIG
from vantage.checkpoints.folder import plain_dtype, read_json, write_tensors
from vantage.checkpoints.pull import find
from vantage.checkpoints.run_folder import TRAINED
from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import CheckpointError, Refused
from vantage.families import built, load, save
from vantage.families.adapters import save_adapter
from vantage.families.recurrent import save_recurrent
from vantage.files import PART, replace_folder
from vantage.model import Model
from vantage.model.lora import adapted
from vantage.model.recurrent import RecurrentModel
from vantage.training.learners import Classifier, Learner
from vantage.training.sources import OpenedData

LABELS, CLASSES = "classifier.json", "classifier.safetensors"
TOKENS = ("bos_token_id", "eos_token_id", "decoder_start_token_id")  # of a config, for who generates


def save_trained(learner: Learner, opened: OpenedData, folder: Path, base: str | None = None, *, step: int) -> Path:
    """Write what was trained, in the place of what is there. It is whole or not there at all.

    Where it is an adapter, the model it belongs to (``base``) is not written again.
    """
    part = folder.with_name(folder.name + PART)
    shutil.rmtree(part, ignore_errors=True)
    try:
        _write(learner, opened, part, base)
        if (part / CONFIG).exists():  # a whole model: an adapter's folder is as peft writes it
            (part / TRAINED).write_text(json.dumps({"step": step}))
        replace_folder(part, folder)
    except (OSError, SafetensorError) as e:
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointError(
            f"the model could not be written to {folder}: {e}. The last checkpoint is as it was; free some space and "
            "continue with --resume"
        ) from e
    return folder


def _write(learner: Learner, opened: OpenedData, folder: Path, base: str | None) -> None:
    core = learner.core
    if isinstance(core, RecurrentModel):
        core.tokenizer = opened.tokenizer
        save_recurrent(core, folder)
    elif isinstance(core, Model) and adapted(core):
        save_adapter(core, folder, base=base)
    else:
        core.tokenizer = opened.tokenizer
        save(core, folder)
    if isinstance(learner, Classifier):
        write_tensors(
            {name: t.detach().cpu().contiguous() for name, t in learner.classes.state_dict().items()}, folder / CLASSES
        )
        (folder / LABELS).write_text(json.dumps({"labels": list(opened.labels), "pool": learner.pool}))


def describe_model(learner: Learner, spec: Any, tokenizer: Tokenizer | None, folder: Path) -> None:
    """Write into a checkpoint what it takes to make a model of its tensors. An adapter's are no whole model.

    ``spec`` is that of the whole model, of which other processes may have some.
    """
    core = learner.core
    if not isinstance(core, Model) or adapted(core):
        return
    try:
        config = built.config_of(spec)
    except Refused:  # it holds a part that is in no registry: the run can go on, and nobody else can load it
        return
    kept = {name: value for name, value in (core.config or {}).items() if name in TOKENS}
    (folder / CONFIG).write_text(json.dumps(config | kept | {"dtype": plain_dtype(core.dtype)}, indent=2))
    if tokenizer is not None:
        tokenizer.save(folder)


def load_classifier(folder: str | Path, *, device: torch.device | str | None = None) -> tuple[Classifier, list[str]]:
    """A classifier that was trained here, from its folder or that of its run, and what its classes are called."""
    folder = find(folder)
    description = read_json(folder, LABELS)
    tensors = load_file(folder / CLASSES)
    if set(tensors) != {"weight", "bias"}:
        raise CheckpointError(f"{folder / CLASSES} holds {sorted(tensors)}; wanted weight and bias")
    learner = Classifier(load(folder), len(tensors["bias"]), description["pool"])
    learner.classes.load_state_dict(tensors)
    learner.labels = tuple(description["labels"])
    return learner.to(device).eval(), list(learner.labels)
