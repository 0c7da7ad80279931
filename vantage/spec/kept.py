"""What a layer keeps besides keys and values: streams of numbers for each token, states of constant size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from vantage.spec.positions import Positions

if TYPE_CHECKING:
    from vantage.spec.parts import Shape


@dataclass(frozen=True)
class KeptStream:
    """Numbers that a layer keeps of each token besides its key and value. No cache rounds them."""

    heads: int
    width: int
    wide: bool = False  # in float32 at least, whatever the model computes in
    running: bool = False  # increments are given, and their sum over the row so far is kept

    def dtype(self, model: torch.dtype) -> torch.dtype:
        return torch.promote_types(model, torch.float32) if self.wide else model


@dataclass(frozen=True)
class StateShape:
    """A state of constant size that a layer keeps of each row, whatever its length."""

    shape: tuple[int, ...]
    wide: bool = False  # in float32 at least, whatever the model computes in

    def dtype(self, model: torch.dtype) -> torch.dtype:
        return torch.promote_types(model, torch.float32) if self.wide else model


class StateCache(Protocol):
    """The states of one layer."""

    def read(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        """(B, *shape) of each: as they are before these tokens. Zeros where a row holds nothing."""
        ...

    def wanted(self, pos: Positions) -> tuple[int, ...]:
        """After which columns of this pass states are to be kept, rising. Padding leaves a state as it is."""
        ...

    def write(self, pos: Positions, columns: Sequence[int], states: Sequence[tuple[Tensor, ...]]) -> None:
        """After each of these columns the states (B, *shape)."""
        ...


@runtime_checkable
class KeepsStreams(Protocol):
    """The config of a score bias that keeps more of each token than its key. What it builds has ``keep``."""

    def streams(self, shape: Shape) -> tuple[KeptStream, ...]: ...


@runtime_checkable
class NeedsEveryKey(Protocol):
    """The config of a score bias that must see every key between a key and a query."""

    @property
    def every_key(self) -> bool: ...


@runtime_checkable
class PoolsKeys(Protocol):
    """The config of an attention that has windows of keys in the place of their tokens."""

    pools_keys: bool


@runtime_checkable
class MixesValues(Protocol):
    """The config of an attention whose values are mixed with those of a layer before it."""

    values_of: int


@runtime_checkable
class ReadsBefore(Protocol):
    """The config of a score bias that reads streams of tokens before the oldest key which a query sees."""

    @property
    def before(self) -> int:
        """Of how many: a window's cache keeps so many more."""
        ...


@runtime_checkable
class StreamSource(Protocol):
    """What such a config builds."""

    def keep(self, x_BTD: Tensor, pos: Positions) -> tuple[Tensor, ...]:
        """For each stream (B, heads, T, width)."""
        ...
