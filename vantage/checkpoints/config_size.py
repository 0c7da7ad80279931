"""Whether a config can belong to the tensors beside it, asked before a model of that size is laid out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from vantage.checkpoints.tensor_names import Tensors
from vantage.errors import CheckpointError

# Every layer has a tensor. Every head, expert or unit has at least a number of its own.
LAYERS = re.compile(r"(^|_)(layers?|blocks?)$")
UNITS = re.compile(r"head|expert|hidden|intermediate|inner|width|embd|vocab|bucket|group|rank|ffn|_dim|d_model")
MAX_EXPERTS = 2**16


def check_config_size(config: Mapping[str, Any], tensors: Tensors) -> None:
    """Refuse a config that promises more than the tensors can hold: following it would take forever."""
    shapes = [tensors.shape(name) for name in tensors.names()]
    _check(config, len(shapes), sum(math.prod(shape) for shape in shapes), "config.json")


def _check(config: Mapping[str, Any], tensors: int, numbers: int, where: str) -> None:
    for key, value in config.items():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Mapping):
                _check(inner, tensors, numbers, f"{where}: {key}")
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if LAYERS.search(key) and value > tensors:
            raise CheckpointError(f"{where}: {key} is {value}, and the checkpoint holds {tensors} tensors in all")
        if (UNITS.search(key) and value > numbers) or ("expert" in key and value > MAX_EXPERTS):
            raise CheckpointError(f"{where}: {key} is {value}, and the checkpoint holds {numbers:,} numbers in all")
