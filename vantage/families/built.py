"""Models that were built from a spec: the spec itself is the config, and the tensors go by our own names."""

from __future__ import annotations

from typing import Any

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, same
from vantage.checkpoints.spec_json import from_json, to_json
from vantage.errors import CheckpointError
from vantage.families.family import Family
from vantage.model import empty_model
from vantage.model.experts import Experts
from vantage.spec.model import ModelSpec

NAME, VERSION = "vantage", 1


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """What ``save`` writes for a model that came from no checkpoint."""
    return {"model_type": NAME, "spec_version": VERSION, "spec": to_json(spec)}


def spec(c: Config) -> ModelSpec:
    c.must_be("spec_version", VERSION)
    read = from_json(c.plain("spec"), most=c.stored)
    ffns = [layer.ffn for stack in (read, read.encoder) if stack is not None for layer in stack.layers]
    needed = sum(ffn.count if isinstance(ffn, Experts) else 1 for ffn in ffns)
    if needed > c.stored:  # asked before a module is made for each
        raise CheckpointError(f"config.json: spec has {needed} feed-forward parts, and there are {c.stored} tensors")
    return read


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return same({name: name for name, _ in empty_model(spec).named_parameters()})


FAMILY = Family(NAME, spec, links, gguf="llama")
