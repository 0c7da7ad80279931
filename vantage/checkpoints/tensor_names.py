"""Older spellings of the same tensors: TensorFlow's BERT called a norm's weight and bias gamma and beta."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor

from vantage.errors import CheckpointError


class Tensors(Protocol):
    """A checkpoint's tensors: a folder, a GGUF file."""

    def names(self) -> Iterable[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def get(self, name: str) -> Tensor: ...


class RenamedTensors:
    """A checkpoint whose tensors go by the newer names. ``older``: pairs (how a name ended, how it ends now)."""

    def __init__(self, tensors: Tensors, older: Sequence[tuple[str, str]]):
        self.tensors = tensors
        self._stored: dict[str, str] = {}
        for name in tensors.names():
            new = _newer(name, older)
            if new in self._stored:
                raise CheckpointError(
                    f"the checkpoint holds both {self._stored[new]!r} and {name!r}: they are the same"
                )
            self._stored[new] = name

    def names(self) -> list[str]:
        return list(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors.shape(self._stored[name])

    def get(self, name: str) -> Tensor:
        return self.tensors.get(self._stored[name])


def _newer(name: str, older: Sequence[tuple[str, str]]) -> str:
    for old, new in older:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
