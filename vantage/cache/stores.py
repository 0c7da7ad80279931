"""What is kept: the keys and values of one layer, in the form and the precision that a codec gives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from vantage.cache.ledger import Ledger, Step
from vantage.cache.moves import Copied
from vantage.errors import BadInput, CacheError


class Stream(NamedTuple):
    """One tensor that is kept for every token and key/value head."""

    width: int
    dtype: torch.dtype


class Codec(ABC):
    """How keys and values become streams, and streams keys and values again."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @abstractmethod
    def streams(self) -> tuple[Stream, ...]: ...

    @abstractmethod
    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        """One tensor (B, G, T, width) for each stream."""

    @abstractmethod
    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (B, G, S, key_dim) and values (B, G, S, value_dim)."""


@final
@dataclass(frozen=True)
class Plain(Codec):
    """Keys and values as they are."""

    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype = torch.float32

    def streams(self) -> tuple[Stream, ...]:
        return Stream(self.key_dim, self.dtype), Stream(self.value_dim, self.dtype)

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        return k_BGTd, v_BGTe

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return streams[0], streams[1]


@final
@dataclass(frozen=True)
class Single(Codec):
    """One stream: the value is the front of the key (MLA: the latent, and the rotary key beside it)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.value_dim > self.key_dim:
            raise BadInput(f"values of width {self.value_dim} cannot be the front of keys of width {self.key_dim}")

    def streams(self) -> tuple[Stream, ...]:
        return (Stream(self.key_dim, self.dtype),)

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        return (k_BGTd,)

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return streams[0], streams[0][..., : self.value_dim]


@final
@dataclass(frozen=True)
class Int8(Codec):
    """Another codec's streams in 8 bits: whole numbers from -127 to 127 and one scale per token and head.

    The scale is absmax / 127, so what is read differs from what was written by at most
    absmax / 254, where absmax is the largest magnitude of that token and head; the rounding of
    ``dtype`` itself comes on top. The scale is kept in float32, or in float64 for a float64 model.
    """

    of: Plain | Single

    @property
    def kv_heads(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] (read only, as in a frozen dataclass)
        return self.of.kv_heads

    @property
    def key_dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] (as above)
        return self.of.key_dim

    @property
    def value_dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] (as above)
        return self.of.value_dim

    @property
    def scale_dtype(self) -> torch.dtype:
        return torch.promote_types(torch.float32, self.of.dtype)

    def streams(self) -> tuple[Stream, ...]:
        pairs = [(Stream(s.width, torch.int8), Stream(1, self.scale_dtype)) for s in self.of.streams()]
        return tuple(stream for pair in pairs for stream in pair)

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        out: list[Tensor] = []
        for x in self.of.encode(k_BGTd, v_BGTe):
            x = x.to(self.scale_dtype)
            scale = x.abs().amax(-1, keepdim=True) / 127
            # a head of zeros has a scale of 0 and must not divide by it
            whole = (x / scale.clamp_min(torch.finfo(scale.dtype).tiny)).round_().to(torch.int8)
            out += [whole, scale]
        return tuple(out)

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return self.of.decode([(n * s).to(self.of.dtype) for n, s in zip(streams[::2], streams[1::2], strict=True)])


@final
class Store:
    """The buffers of one layer: one for each of the codec's streams, arranged as the ledger wants them."""

    def __init__(self, codec: Codec, ledger: Ledger):
        self.codec = codec
        self.pooled = ledger.pooled
        self._device = ledger.device
        lead = (codec.kv_heads,) if self.pooled else (ledger.batch, codec.kv_heads)
        self._buffers = [self._zeros((*lead, ledger.places, s.width), s.dtype) for s in codec.streams()]
        self._places = ledger.places
        self.written = 0  # tokens whose keys were projected and kept here, by every cache that shares this store
        self.version = 0  # how often the buffers have become other ones
        self._last: Step | None = None  # the last step written
        self._waiting: tuple[Step, tuple[Tensor, ...]] | None = None  # a deferred write

    @property
    def bytes(self) -> int:
        """What its tensors take. A pool is counted whole, whoever else uses it."""
        waiting = self._waiting[1] if self._waiting else ()
        return sum(t.nbytes for t in (*self._buffers, *waiting))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self._buffers)

    def check(self, rows: int, width: int, k_BGTd: Tensor, v_BGTe: Tensor) -> None:
        """Raises if these keys and values cannot be kept here."""
        codec = self.codec
        lead = (rows, codec.kv_heads, width)
        if k_BGTd.shape != (*lead, codec.key_dim) or v_BGTe.shape != (*lead, codec.value_dim):
            raise BadInput(
                f"keys {tuple(k_BGTd.shape)} and values {tuple(v_BGTe.shape)} for a cache that takes "
                f"{(*lead, codec.key_dim)} and {(*lead, codec.value_dim)}: (rows, key/value heads, tokens, width)"
            )
        if (k_BGTd.requires_grad or v_BGTe.requires_grad) and torch.is_grad_enabled():
            raise BadInput("a cache keeps no gradients: use torch.no_grad() with a cache, or no cache to train")

    def enter(self, step: Step, tokens: int) -> list[Tensor]:
        """The buffers, with room for a pass of so many tokens, for a kernel that writes into them itself."""
        buffers = self._open(step)
        self.written += tokens
        if isinstance(step.write, Copied):
            for buffer in buffers:
                step.write.copy(buffer)
        return buffers

    def _open(self, step: Step) -> list[Tensor]:
        if step is self._last:
            raise CacheError("these positions were appended here before: make new Positions for every pass")
        assert step.write is not None, "a step that only looks cannot write"
        if self._waiting is not None:
            self.settle()
        if step.places > self._places:
            self._grow(step.places)
        self._last = step
        return self._buffers

    def write(self, step: Step, k_BGTd: Tensor, v_BGTe: Tensor) -> None:
        """Take in what a pass brings."""
        self._open(step)
        assert step.write is not None
        streams = self.codec.encode(k_BGTd, v_BGTe)
        self.written += k_BGTd.shape[0] * k_BGTd.shape[2]
        if step.deferred:
            self._waiting = (step, streams)
            return
        for buffer, x in zip(self._buffers, streams, strict=True):
            step.write.put(buffer, x)

    def read(self, step: Step) -> tuple[Tensor, Tensor]:
        """What a step shows."""
        if self._waiting is not None:
            if self._waiting[0] is step:
                pairs = zip(self._buffers, self._waiting[1], strict=True)
                return self.codec.decode([step.read.get(buffer, x) for buffer, x in pairs])
            self.settle()
        return self.codec.decode([step.read.get(buffer, None) for buffer in self._buffers])

    def settle(self) -> None:
        """Do the write that waits, unless its pass failed."""
        if self._waiting is None:
            return
        step, streams = self._waiting
        self._waiting = None
        if not step.void and step.write is not None:
            for buffer, x in zip(self._buffers, streams, strict=True):
                step.write.put(buffer, x)

    def fork(self, ledger: Ledger) -> Store:
        """The same for a forked ledger. A pool is shared: its ledgers know who uses what."""
        if self.pooled:
            return self
        self.settle()
        other = Store(self.codec, ledger)
        other._fill(self._buffers, ledger.used)
        return other

    def fresh(self, ledger: Ledger) -> Store:
        """An empty one for a fresh ledger."""
        return self if self.pooled else Store(self.codec, ledger)

    def reorder(self, index: Sequence[int], used: int) -> None:
        """Row i becomes what row index[i] was. Only the first ``used`` places hold anything."""
        if self.pooled:
            return
        self.settle()
        rows = torch.tensor(index, device=self._device)
        old = self._buffers
        self.version += 1
        self._buffers = [self._zeros((len(index), *buffer.shape[1:]), buffer.dtype) for buffer in old]
        self._fill([buffer.narrow(2, 0, used).index_select(0, rows) for buffer in old], used)

    def _fill(self, source: Sequence[Tensor], used: int) -> None:
        for mine, other in zip(self._buffers, source, strict=True):
            mine.narrow(2, 0, used).copy_(other.narrow(2, 0, used))

    def _grow(self, places: int) -> None:
        old, self._buffers = self._buffers, []
        self.version += 1
        for buffer in old:
            wide = self._zeros((*buffer.shape[:-2], places, buffer.shape[-1]), buffer.dtype)
            wide.narrow(-2, 0, self._places).copy_(buffer)
            self._buffers.append(wide)
        self._places = places

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # zeros, since an empty place is read with weight 0 and must not be NaN; and not an
        # inference tensor, which could not be written outside inference mode
        with torch.inference_mode(False):
            return torch.zeros(shape, dtype=dtype, device=self._device)
