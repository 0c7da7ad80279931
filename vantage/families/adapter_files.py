"""Reading the files of an adapter, which may come from anybody: JSON and safetensors, every key accounted for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vantage.checkpoints.adapter_folder import CONFIG, WEIGHTS
from vantage.checkpoints.config import Config
from vantage.checkpoints.folder import inside, read_json
from vantage.errors import CheckpointError
from vantage.families.packing import sound

START = "base_model.model."  # how peft begins every name
NAME = re.compile(re.escape(START) + r"(.+)\.lora_([AB])\.weight")
LITERAL = re.compile(r"[\w.-]+")
# How an adapter was made or is found, not what it computes. Which maps it is on, its tensors say.
INERT = frozenset(
    [
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
    ]
)


@dataclass(frozen=True)
class AdapterFile:
    """An adapter's file, checked as far as it can be without the model."""

    tensors: Mapping[str, Tensor]  # by the module's name and "A" or "B"
    modules: tuple[str, ...]
    metadata: Mapping[str, str]
    rank: int
    alpha: float
    ranks: Mapping[str, float]  # exceptions, by the end of a module's name
    alphas: Mapping[str, float]
    root: bool  # scaled by alpha / √rank instead of alpha / rank
    dropout: float

    def pair(self, module: str) -> tuple[Tensor, Tensor, float]:
        """A (rank, inputs), B (outputs, rank) and the alpha of alpha / rank."""
        a, b = (sound(self.tensors[f"{module}.{x}"], f"{START}{module}.lora_{x}.weight") for x in "AB")
        rank, alpha = int(_exception(self.ranks, module, self.rank)), _exception(self.alphas, module, self.alpha)
        if a.dim() != 2 or b.dim() != 2 or a.shape[0] != rank or b.shape[1] != rank:
            raise CheckpointError(
                f"the adapter of {module!r} has shapes {tuple(a.shape)} and {tuple(b.shape)}, "
                f"and {CONFIG} says rank {rank}: they do not belong together"
            )
        return a, b, alpha * math.sqrt(rank) if self.root else alpha


def read_adapter(folder: Path) -> AdapterFile:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give one that holds {CONFIG} and {WEIGHTS}")
    raw = read_json(folder, CONFIG)
    # peft writes every option of every method; what is off is off
    off = {k for k, v in raw.items() if v is None or v is False or v in ({}, [], "")}
    config = Config({k: v for k, v in raw.items() if k not in off}, CONFIG)
    config.must_be("peft_type", "LORA")
    config.must_be("bias", "none")
    # other ways to start change the model below as well
    config.must_be("init_lora_weights", True, False, "gaussian", "orthogonal", "eva")
    rank, alpha = config.whole("r", low=1), config.number("lora_alpha")
    ranks, alphas = (_exceptions(config, name) for name in ("rank_pattern", "alpha_pattern"))
    root, dropout = config.flag("use_rslora", False), config.number("lora_dropout", 0.0)
    config.settle(INERT)
    if not 0 <= dropout < 1 or min((alpha, *alphas.values())) <= 0:
        raise CheckpointError(f"{CONFIG}: lora_alpha must be above 0 and lora_dropout from 0 up to, not including, 1")
    tensors, metadata = _tensors(folder)
    modules = tuple(dict.fromkeys(name.rpartition(".")[0] for name in tensors))
    for module in modules:
        if lost := [x for x in "AB" if f"{module}.{x}" not in tensors]:
            raise CheckpointError(f"{WEIGHTS} lacks {f'{START}{module}.lora_{lost[0]}.weight'!r}")
    return AdapterFile(tensors, modules, metadata, rank, alpha, ranks, alphas, root, dropout)


def _tensors(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    path = inside(folder, WEIGHTS) if (folder / WEIGHTS).exists() else None
    if path is None:
        raise CheckpointError(f"{folder} has no {WEIGHTS}; other files may hold code (pickle) and are never opened")
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                match = NAME.fullmatch(name)
                if match is None:
                    raise CheckpointError(f"{WEIGHTS} holds {name!r}, which is no part of a plain LoRA adapter")
                tensors[f"{match[1]}.{match[2]}"] = file.get_tensor(name)
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"{WEIGHTS}: {e}") from e
    if not tensors:
        raise CheckpointError(f"{WEIGHTS} holds no tensors")
    return tensors, metadata


def _exceptions(config: Config, name: str) -> dict[str, float]:
    """Numbers by the ends of module names. peft reads those as regular expressions; only plain ones are taken."""
    if name not in config:
        return {}
    patterns = config.plain(name)
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{CONFIG}: {name} must be an object with a number for each name")
    numbers: dict[str, float] = {}
    for key, value in patterns.items():
        plain = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if LITERAL.fullmatch(plain) is None or not number:
            raise CheckpointError(f"{CONFIG}: {name} has {key!r}: {value!r}; plain names and numbers are understood")
        numbers[plain] = value
    return numbers


def _exception(patterns: Mapping[str, float], module: str, otherwise: float) -> float:
    """The first that fits, as in peft."""
    return next((v for end, v in patterns.items() if module == end or module.endswith(f".{end}")), otherwise)


def plain_number(x: float) -> Any:
    """16.0 as 16: peft's own files hold whole numbers where they can."""
    return int(x) if float(x).is_integer() else x
