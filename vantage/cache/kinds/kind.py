"""What a kind of cache is: which ledger a layer gets, and in which form its keys and values are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, final, runtime_checkable

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, StreamShape
from vantage.cache.ledger import Ledger
from vantage.spec.kept import KeptStream, StateShape
from vantage.spec.masks import Mask
from vantage.spec.model import CacheShape


@final
@dataclass(frozen=True)
class LayerPlan:
    """What one attention layer asks of a cache."""

    kv_heads: int
    key_dim: int
    value_dim: int
    mask: Mask
    single_stream: bool = False  # MLA: the value is the front of the key
    streams: tuple[KeptStream, ...] = ()  # what else is kept of each token, as it is
    states: tuple[StateShape, ...] = ()  # of constant size, whatever the length
    every_key: bool = False  # it must see every key before a query
    before: int = 0  # tokens before the oldest key in a query's sight of which it reads the streams

    @staticmethod
    def of(shape: CacheShape, mask: Mask) -> LayerPlan:
        sizes = shape.kv_heads, shape.key_dim, shape.value_dim
        return LayerPlan(*sizes, mask, shape.single, shape.streams, shape.states, shape.every_key, shape.before)

    def stream_shapes(self, dtype: torch.dtype) -> tuple[StreamShape, ...]:
        return tuple(StreamShape.of(stream, dtype) for stream in self.streams)

    @property
    def reach(self) -> int | None:
        """How many tokens back there must be something kept for a query, itself included."""
        reach = self.mask.reach()
        return None if reach is None else max(1, reach) + self.before

    def codec(self, dtype: torch.dtype) -> PlainCodec | SingleCodec:
        """Its keys and values as they are."""
        kind = SingleCodec if self.single_stream else PlainCodec
        return kind(self.kv_heads, self.key_dim, self.value_dim, dtype)


@final
@dataclass(frozen=True)
class LedgerNeed:
    """What is asked of a ledger. Layers with the same reach share one."""

    batch: int
    reach: int | None = None  # how many keys back a query sees; None: all
    capacity: int | None = None  # tokens of a row; None: it grows
    draft: int | None = None  # tokens that a layer with a window must be able to take back
    block: int | None = None  # tokens of a block, where there are blocks
    device: torch.device | str | None = None
    kv_heads: int = 1  # of the layer; 0: it keeps states alone, and the ledger its positions


@runtime_checkable
class CacheKind(Protocol):
    """A frozen dataclass whose fields are the options of this kind. ``new_cache`` takes its name, or an object."""

    ledgers: ClassVar[tuple[type[Ledger], ...]]  # those that ``ledger`` makes, so that a file can be read again
    codecs: ClassVar[tuple[type[Codec], ...]]  # likewise
    exact: ClassVar[bool]  # what is read is what was written
    evicts: ClassVar[bool]  # lets go of what left a window, whether or not a draft is asked for

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        """Why a model with these layers cannot have such a cache; ``None``: it can."""
        ...

    def ledger(self, need: LedgerNeed) -> Ledger: ...

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec: ...

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        """What the buffers of one layer's keys and values take, for a need with a capacity."""
        ...


@runtime_checkable
class ForgettingKind(Protocol):
    """A kind that lets go of tokens which the masks of a model would still show."""

    @property
    def own_ledgers(self) -> bool:
        """Whether every layer decides for itself what it keeps. If not, layers of one reach share a ledger."""
        ...

    @property
    def mask(self) -> Mask | None:
        """With this mask as well, a pass without a cache gives the same; ``None``: no mask says it."""
        ...


def as_forgetting(kind: CacheKind) -> ForgettingKind | None:
    """The same kind as one that forgets; ``None``: it keeps all that masks show."""
    return kind if isinstance(kind, ForgettingKind) else None
