"""A ModelSpec as plain JSON and back: every part by the name of its class, with its fields.

Only classes of the registries (``spec_parts``) are ever made, each only where it fits; no name is imported and no code
is run. A part from outside is called by its import path, and is made only if that very class has been registered. What
is not understood is refused, with the nearest that would be.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import groupby
from math import isfinite
from typing import Any

from vantage.checkpoints.spec_parts import classes_by_place, classes_by_protocol
from vantage.errors import CheckpointError, Refused
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Buildable
from vantage.spec.table_reader import KIND, OF, TIMES, PartNames, Reader, written_name

# ---- to JSON


def to_json(spec: ModelSpec) -> dict[str, Any]:
    """The spec as objects, lists, numbers and words. Equal neighbours in a list (layers) are written once."""
    data = _written(spec, "spec")
    tower = None if spec.vision is None else spec.vision.encoder
    deepest = max(len(stack.layers) for stack in (spec, spec.encoder, tower) if stack is not None)
    try:
        read = from_json(data, most=deepest)
    except CheckpointError as e:
        raise Refused(f"this spec cannot be written: {e}. Only parts of a registry can be read back") from e
    if read != spec:  # a part that calls itself by a name of ours
        raise Refused("this spec cannot be written: it holds a part that is not the one of Vantage by that name")
    return data


def _written(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if isinstance(value, tuple):
        return _folded([_written(item, f"{where}[{i}]") for i, item in enumerate(value)])
    if is_dataclass(value) and not isinstance(value, type):
        data = {f.name: _written(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
        return {KIND: written_name(type(value)), **data}
    raise Refused(f"{where} is {value!r}, which cannot be written as JSON: only frozen parts and plain values can be")


def _folded(items: list[Any]) -> list[Any]:
    folded: list[Any] = []
    for item, run in groupby(items):
        n = len(list(run))
        folded += [{TIMES: n, OF: item}] if n > 1 and isinstance(item, dict) else [item] * n
    return folded


# ---- from JSON


def from_json(data: Any, *, most: int) -> ModelSpec:
    """The spec that was written; ``most`` is how many layers there can be (every layer has a tensor)."""
    names = PartNames(classes_by_protocol(), {Buildable: classes_by_place()})
    return Reader(most, names).part(data, (ModelSpec,), "spec", 0)
