"""How a module is lowered to a program for the native CPU kernels.

A module with a native form has a method ``native``: it asks a ``Program`` for the steps that it is made of. Where a
module, or what it is made of, has none, ``CannotLower`` says so by name, and the model runs as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vantage.spec.forms import DistanceForm, GateSums, QueryForm, ValueTable
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

LANES = 16  # numbers that the kernels take at once: heads and hidden layers must be whole multiples


class CannotLower(Exception):
    """Why a model has no native form."""


def no_native_form(part: object) -> CannotLower:
    return CannotLower(f"{type(part).__name__} has no native form")


@runtime_checkable
class AsksHost(Protocol):
    """A module that reads numbers back from the device to know what to compute: no graph can be captured of it."""

    asks_host: str  # what it reads


def asks_host(model: nn.Module) -> str | None:
    """What the modules of a model read back from the device; ``None``: nothing."""
    return next((part.asks_host for part in model.modules() if isinstance(part, AsksHost)), None)


class HeadColumns(NamedTuple):
    """Heads that stand side by side in a buffer."""

    buffer: int
    column: int  # of the first
    heads: int
    head_dim: int


class NormForm(NamedTuple):
    """A norm in numbers: x, less its mean where ``centred``, over its size, times offset + weight, plus bias."""

    centred: bool
    eps: float
    offset: float
    weight: Tensor
    bias: Tensor | None


class ScoreForm(NamedTuple):
    """What stands between q·k and the weights, where it has a native form: a softmax over what came before."""

    scale: float
    softcap: float | None
    window: int  # 0: all that came before
    bias: DistanceForm | QueryForm | GateSums | None
    sinks: Tensor | None
    learned: tuple[Tensor, ...] = ()  # what biases were made of: when one of them changes, they are no longer true
    values: ValueTable | None = None

    @property
    def reads_positions(self) -> bool:
        """Whether it matters how far a key is."""
        return self.bias is not None or self.values is not None


class LatentDims(NamedTuple):
    """The widths of latent attention."""

    heads: int
    rank: int  # of the latent
    nope: int  # of a query that meets the latent
    rope: int  # and of one that meets the rotary key
    values: int


class LatentForm(NamedTuple):
    """Latent attention in its absorbed form: queries are carried into the latent's space, and back to the values."""

    sizes: LatentDims
    norm: nn.Module  # of the latent
    k_up: Tensor  # (heads, nope, rank)
    v_up: Tensor  # (heads, values, rank)


class AngleTables(Protocol):
    """A rotation whose cosines and sines are handed to every call of a program."""

    def tables(self, pos: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]: ...


@runtime_checkable
class EndingTables(Protocol):
    """A rotation whose numbers leave the range of a dtype."""

    def last_position(self, dtype: torch.dtype) -> int: ...


def fewest_positions(positions: int | None, tables: AngleTables, dtype: torch.dtype) -> int | None:
    """So many, or those that a rotation has, if they are fewer; ``None``: any."""
    if not isinstance(tables, EndingTables):
        return positions
    own = tables.last_position(dtype) + 1
    return own if positions is None else min(positions, own)


class Program(Protocol):
    """Steps over buffers of rows. A buffer goes by its number."""

    def width(self, buffer: int) -> int: ...

    def buffer(self, name: str, width: int) -> int:
        """The same name and width is the same buffer."""
        ...

    def lower(self, module: nn.Module, src: int, into: int | None = None) -> int:
        """The steps of a module. Its result stands in the buffer returned, or is added to ``into``, if given."""
        ...

    def linear(self, module: nn.Module, src: int, into: int | None, name: str) -> int:
        """A linear map, into a buffer of this name or added to ``into``."""
        ...

    def norm(self, module: nn.Module, src: int, dst: int) -> None: ...

    def norm_heads(self, module: nn.Module, heads: HeadColumns) -> None:
        """In place, each head by itself."""
        ...

    def transform(self, module: nn.Module, queries: HeadColumns, keys: HeadColumns) -> None:
        """The steps of a q/k transform, in place."""
        ...

    def rotate(self, tables: AngleTables, heads: HeadColumns, turned: int, *, adjacent: bool) -> None:
        """In place: the first ``turned`` dimensions of each head, by pairs."""
        ...

    def shift(self, offset: Tensor, heads: HeadColumns) -> None:
        """In place: add a vector (heads, head_dim) that is the same for every row."""
        ...

    def attend(self, qkv: int, index: int, shape: Shape, scores: ScoreForm, gates: int | None = None) -> int:
        """Append the keys and values of a buffer to the layer's cache and attend: (rows, heads · value_dim).
        ``gates``: the buffer of what the gates of ``GateSums`` gave."""
        ...

    def attend_latent(self, q: int, kv: int, index: int, form: LatentForm, scores: ScoreForm) -> int:
        """Append the latent and the rotary key of ``kv``, normed and turned, to the layer's cache and attend with the
        queries of ``q``, each with its rotary part behind: (rows, heads · values)."""
        ...

    def activate(self, src: int, hidden: int, function: Any, *, gated: bool) -> int: ...
    def add(self, dst: int, a: int, b: int) -> None: ...
    def scale(self, buffer: int, factor: float, softcap: float | None) -> None: ...


def implements(part: object, protocol: type) -> bool:
    """Whether a part's own class has this form: what torch.compile wraps around a module answers like it, and is
    run by torch."""
    return issubclass(type(part), protocol)


@runtime_checkable
class HasNativeForm(Protocol):
    """A module whose ``forward`` can be a part of a program."""

    def native(self, program: Program, src: int, into: int | None) -> int: ...


@runtime_checkable
class HasNormForm(Protocol):
    def norm_form(self) -> NormForm: ...


@runtime_checkable
class HasNativeTransform(Protocol):
    """A q/k transform."""

    def native_transform(self, program: Program, queries: HeadColumns, keys: HeadColumns) -> None: ...
