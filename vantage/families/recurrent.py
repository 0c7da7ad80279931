"""Recurrent encoder-decoders in a folder: config.json with the spec, and safetensors under our own names.

The layout of ``built``, apart from it as a ``RecurrentModel`` is no ``Model``: it has no cache, kernel or positions.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from vantage.checkpoints.config import Config
from vantage.checkpoints.config_size import check_config_size
from vantage.checkpoints.folder import Folder, plain_dtype, write_folder
from vantage.checkpoints.model_folder import writing_model
from vantage.checkpoints.pull import find
from vantage.checkpoints.tokenizer import from_folder
from vantage.errors import BadInput, CheckpointError, Refused
from vantage.families.packing import sound
from vantage.model import no_weights
from vantage.model.recurrent import RecurrentModel, RecurrentSpec

NAME, VERSION = "vantage-recurrent", 1


def save_recurrent(model: RecurrentModel, folder: str | Path, *, overwrite: bool = False) -> None:
    """Write a model as a folder that ``load_recurrent`` reads back."""
    config: dict[str, Any] = {"model_type": NAME, "spec_version": VERSION, "spec": asdict(model.spec)}
    config["dtype"] = plain_dtype(model.dtype)
    with writing_model(folder, overwrite=overwrite) as written:
        write_folder(written, config, dict(model.named_parameters()))
        if model.tokenizer is not None:
            model.tokenizer.save(written)


def load_recurrent(folder: str | Path, *, dtype: torch.dtype = torch.float32) -> RecurrentModel:
    """The model of a folder or of a training run. Every key of its config is read, every tensor used, every
    parameter filled."""
    checkpoint = Folder(find(folder))
    if checkpoint.config.get("model_type") != NAME:
        raise CheckpointError(
            f"{folder}: model_type is {checkpoint.config.get('model_type')!r}, wanted {NAME!r}; use load"
        )
    check_config_size(checkpoint.config, checkpoint)
    config = Config(checkpoint.config, tensors=list(checkpoint.names()))
    config.must_be("spec_version", VERSION)
    spec = _spec(config.plain("spec"))
    config.settle()
    try:
        with no_weights():
            model = RecurrentModel(spec)
    except (RuntimeError, ValueError, ArithmeticError) as e:  # torch's own: a size that overflows
        raise CheckpointError(f"{folder}: {e}") from e
    _balance(model, checkpoint)
    # copied, not mapped: these models are small, and training writes to the weights
    read = {name: sound(checkpoint.get(name), name).to(dtype, copy=True) for name in checkpoint.names()}
    model.load_state_dict(read, assign=True)
    model.tokenizer = from_folder(checkpoint.path)
    return model.eval()


def _spec(settings: Any) -> RecurrentSpec:
    if not isinstance(settings, dict):
        raise CheckpointError(f"config.json: spec is {type(settings).__name__}; wanted an object with keys")
    known = {f.name for f in fields(RecurrentSpec)}
    if settings.keys() != known:
        name = sorted(settings.keys() ^ known)[0]
        raise CheckpointError(f"config.json: spec {'lacks' if name in known else 'has an unknown'} {name!r}")
    try:
        return RecurrentSpec(**settings)  # it checks the kind of every value
    except (BadInput, Refused) as e:
        raise CheckpointError(f"config.json: spec: {e}") from e


def _balance(model: RecurrentModel, checkpoint: Folder) -> None:
    """Names and shapes on both sides, before any data is read."""
    ours, theirs = {name: tuple(p.shape) for name, p in model.named_parameters()}, set(checkpoint.names())
    if missing := sorted(ours.keys() - theirs):
        raise CheckpointError(f"the checkpoint lacks {missing[0]!r}")
    if extra := sorted(theirs - ours.keys()):
        raise CheckpointError(f"the checkpoint holds {extra[0]!r}, which this model has no use for")
    for name, shape in ours.items():
        if checkpoint.shape(name) != shape:
            raise CheckpointError(f"{name!r} has shape {checkpoint.shape(name)}, and the config asks for {shape}")
