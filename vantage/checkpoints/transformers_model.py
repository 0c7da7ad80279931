"""A transformers model in memory, read as the folder that it would be saved to, without writing one.

transformers is never imported from here: whoever hands over one of its models has done so.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vantage.checkpoints.folder import plain_dtype
from vantage.errors import BadInput, Refused


def is_transformers_model(model: object) -> bool:
    """Whether this is a transformers model. If transformers was never imported, it is not."""
    library = sys.modules.get("transformers")
    return library is not None and isinstance(model, library.PreTrainedModel)


class TensorsInMemory:
    """The config and the tensors that ``save_pretrained`` would write. The tensors share the model's memory."""

    def __init__(self, model: Any):
        self.name = type(model).__name__
        self.config: dict[str, Any] = json.loads(model.config.to_json_string())
        self.config |= {"architectures": [self.name], "dtype": plain_dtype(model.dtype)}
        self._tensors = _as_saved(model)
        for name, tensor in self._tensors.items():
            if ".base_layer." in name:  # peft puts its adapters around a map that it calls so
                raise BadInput(f"this {self.name} has adapters of peft on it: give what merge_and_unload() returns")
            if tensor.device.type == "meta":
                raise BadInput(f"{name!r} of this {self.name} has no data (it is on the device 'meta'): load it whole")

    def names(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def get(self, name: str) -> Tensor:
        return self._tensors[name]


def _as_saved(model: Any) -> dict[str, Tensor]:
    """Some of its tensors go by other names in memory than in files, or are several there (experts)."""
    try:
        tied = importlib.import_module("transformers.modeling_utils").remove_tied_weights_from_state_dict
        reverted = importlib.import_module("transformers.core_model_loading").revert_weight_conversion
    except (ImportError, AttributeError) as e:
        version = sys.modules["transformers"].__version__
        raise Refused(
            f"a model of transformers {version} cannot be taken from memory: use transformers 5, or write it with "
            "save_pretrained and load the folder"
        ) from e
    left_out = set(model._keys_to_ignore_on_save or ())
    with torch.no_grad():
        stored = {name: tensor for name, tensor in model.state_dict().items() if name not in left_out}
        return reverted(model, tied(stored, model))
