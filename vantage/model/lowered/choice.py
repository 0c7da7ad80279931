"""Which way a step with a cache runs, and why not a faster one. Nothing is computed, and no device is asked."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import torch

from vantage.kernels.native.build import enabled, processor_features, unused_matrix_units
from vantage.model.lowered.gpu_program import lower_for_gpu
from vantage.model.lowered.lower import lower
from vantage.model.lowered.module_step import uncaptured
from vantage.model.lowered.pass_sizes import MOST_DRAFTED
from vantage.spec.native import CannotLower

LOWERED, CAPTURED, MODULES = "lowered", "graph of modules", "modules"
STEPS_AHEAD = "several steps in one call"
LONG_PASSES = f"passes of more than {MOST_DRAFTED} tokens of a row as a graph"


class StepChoice(NamedTuple):
    """``others``: why each faster way is not taken, by name."""

    name: str
    others: dict[str, str]


def step_choice(model: Any, device: str) -> StepChoice:
    """A token for each row: as a lowered program, as a CUDA graph of the modules, or module by module."""
    if not enabled():
        return StepChoice(MODULES, {LOWERED: "VANTAGE_NATIVE=0"})
    if model.encoder is not None:
        return StepChoice(MODULES, {LOWERED: "cross-attention has no native form"})
    others: dict[str, str] = {}
    try:
        if device == "cuda":
            if (why := lower_for_gpu(model).why_no_chunks) is not None:
                others[LONG_PASSES] = why
        elif model.dtype is not torch.float32:
            raise CannotLower(f"on a CPU native steps compute in float32, not {model.dtype}")
        else:
            lower(model.blocks, model.norm, model.spec.width)
            others.update(unused_matrix_units(processor_features()))
            if model.placement.layers:
                others[STEPS_AHEAD] = (
                    f"{len(model.placement.layers)} layers are not in memory, and come and go one by one"
                )
        return StepChoice(LOWERED, others)
    except CannotLower as why:
        others[LOWERED] = str(why)
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            others[CAPTURED] = "Triton is not installed"
        elif (why := uncaptured(model)) is not None:
            others[CAPTURED] = why
        else:
            return StepChoice(CAPTURED, others)
    return StepChoice(MODULES, others)
