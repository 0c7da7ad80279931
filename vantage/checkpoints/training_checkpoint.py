"""A checkpoint of a training, read as the model that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from vantage.checkpoints.file_names import CONFIG
from vantage.checkpoints.folder import read_json
from vantage.checkpoints.run_folder import verify
from vantage.checkpoints.stored_tensors import StoredTensors
from vantage.errors import CheckpointError


class TrainingCheckpoint:
    """A checkpoint as the tensors of its model, under the names that ``vt.save`` gives them.

    Where the run averages its weights these are the averages: what it evaluates, and what it saves in the end.
    """

    def __init__(self, path: Path):
        self.path = path
        if not (path / CONFIG).is_file():
            raise CheckpointError(
                f"{path} is a checkpoint that does not say what its model is: it is of an adapter or of a recurrent "
                "model, or an earlier version wrote it. Finish the run (`vantage train … --resume`), then load it"
            )
        verify(path)
        self.config = read_json(path, CONFIG)
        self._stored = StoredTensors(path)
        self._stored_names = {
            name.removeprefix(prefix): name
            for prefix in ("model.core.", "average.core.")  # the later one counts
            for name in self._stored.metadata
            if name.startswith(prefix)
        }

    def names(self) -> Iterator[str]:
        return iter(self._stored_names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored.shape(self._stored_names[name])

    def get(self, name: str) -> Tensor:
        """A copy in memory: the run may remove the checkpoint at any time."""
        return self._stored.get(self._stored_names[name]).clone()
