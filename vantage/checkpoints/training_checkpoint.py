"""A checkpoint of a training, read as the model that it holds."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vantage.checkpoints.file_names import CONFIG
from vantage.checkpoints.folder import read_json
from vantage.checkpoints.run_folder import verify
from vantage.errors import CheckpointError


class TrainingCheckpoint:
    """A checkpoint as the tensors of its model, under the names that ``vt.save`` gives them.

    Where the run averages its weights these are the averages: what it evaluates, and what it saves in the end.
    """

    def __init__(self, path: Path):
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # it takes a while to import

        self.path = path
        if not (path / CONFIG).is_file():
            raise CheckpointError(
                f"{path} is a checkpoint that does not say what its model is: it is of an adapter or of a recurrent "
                "model, or an earlier version wrote it. Finish the run (`vantage train … --resume`), then load it"
            )
        verify(path)
        self.config = read_json(path, CONFIG)
        stored = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
        self._stored_names = {
            name.removeprefix(prefix): name
            for prefix in ("model.core.", "average.core.")  # the later one counts
            for name in stored
            if name.startswith(prefix)
        }
        self._stored: dict[str, Any] = {name: stored[name] for name in self._stored_names.values()}

    def names(self) -> Iterator[str]:
        return iter(self._stored_names)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._stored[self._stored_names[name]].size)

    def get(self, name: str) -> Tensor:
        return self._tensors[self._stored_names[name]]

    @functools.cached_property
    def _tensors(self) -> dict[str, Tensor]:
        """All of them: with several processes each wrote a part of every tensor."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        tensors = {name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in self._stored.items()}
        with warnings.catch_warnings():  # that it runs in one process alone, which is what is wanted
            warnings.simplefilter("ignore")
            load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(self.path)), no_dist=True)
        return tensors
