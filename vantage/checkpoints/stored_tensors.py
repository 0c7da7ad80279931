"""The tensors of a checkpoint of a training, one at a time and mapped from their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor


class StoredTensors:
    """What torch.distributed.checkpoint wrote to a folder, by name. Nothing is read until it is asked for."""

    def __init__(self, path: Path):
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # it takes a while to import

        stored = HuggingFaceStorageReader(str(path)).read_metadata()
        self.metadata: Mapping[str, Any] = stored.state_dict_metadata
        self._parts: dict[str, list[tuple[tuple[int, ...], str]]] = {}  # where each part begins, and its file
        files: Mapping[Any, Any] = stored.storage_data or {}
        for index, part in files.items():
            self._parts.setdefault(index.fqn, []).append((tuple(index.offset), part.relative_path))
        self._open: dict[str, Any] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.metadata[name].size)

    def get(self, name: str) -> Tensor:
        """The tensor, mapped; in memory where several processes wrote a part of it each."""
        parts = self._parts[name]
        if len(parts) == 1:
            return self._file(parts[0][1]).get_tensor(name)
        whole = torch.empty(self.shape(name), dtype=self.metadata[name].properties.dtype)
        for first, file in parts:
            part = self._file(file).get_tensor(name)
            whole[tuple(slice(at, at + n) for at, n in zip(first, part.shape, strict=True))] = part
        return whole

    def _file(self, file: str) -> Any:
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt", device="cpu")
        return self._open[file]
