"""What is kept: the keys and values of one layer, in the form and the precision that a codec gives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from vantage.cache.dump import damaged
from vantage.cache.ledger import Ledger, Step
from vantage.cache.moves import Copied
from vantage.errors import BadInput, CacheError


class StreamShape(NamedTuple):
    """One tensor that is kept for every token and key/value head."""

    width: int
    dtype: torch.dtype


class Codec(ABC):
    """How keys and values become streams, and streams keys and values again."""

    kind: ClassVar[str]  # its name in a file
    kv_heads: int
    key_dim: int
    value_dim: int

    @abstractmethod
    def streams(self) -> tuple[StreamShape, ...]: ...

    @property
    @abstractmethod
    def exact(self) -> Codec:
        """The codec of what comes back, without the rounding of this one. Itself, if it rounds nothing."""

    @abstractmethod
    def dump(self) -> dict[str, Any]:
        """What JSON can hold, with "kind": enough for ``from_dump``."""

    @classmethod
    @abstractmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> Self: ...

    @abstractmethod
    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        """One tensor (B, G, T, width) for each stream."""

    @abstractmethod
    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (B, G, S, key_dim) and values (B, G, S, value_dim)."""


@final
@dataclass(frozen=True)
class PlainCodec(Codec):
    """Keys and values as they are."""

    kind = "plain"
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype = torch.float32

    def streams(self) -> tuple[StreamShape, ...]:
        return StreamShape(self.key_dim, self.dtype), StreamShape(self.value_dim, self.dtype)

    @property
    def exact(self) -> PlainCodec:
        return self

    def dump(self) -> dict[str, Any]:
        return dump_sizes(self, self.dtype)

    @classmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> PlainCodec:
        return PlainCodec(*read_sizes(saved))

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        return k_BGTd, v_BGTe

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return streams[0], streams[1]


@final
@dataclass(frozen=True)
class SingleCodec(Codec):
    """One stream: the value is the front of the key (MLA: the latent, and the rotary key beside it)."""

    kind = "single"
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.value_dim > self.key_dim:
            raise BadInput(f"values of width {self.value_dim} cannot be the front of keys of width {self.key_dim}")

    def streams(self) -> tuple[StreamShape, ...]:
        return (StreamShape(self.key_dim, self.dtype),)

    @property
    def exact(self) -> SingleCodec:
        return self

    def dump(self) -> dict[str, Any]:
        return dump_sizes(self, self.dtype)

    @classmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> SingleCodec:
        return SingleCodec(*read_sizes(saved))

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        return (k_BGTd,)

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return streams[0], streams[0][..., : self.value_dim]


@final
@dataclass(frozen=True)
class Int8Codec(Codec):
    """Another codec's streams in 8 bits: whole numbers from -127 to 127 and one scale per token and head.

    The scale is absmax / 127, so what is read differs from what was written by at most
    absmax / 254, where absmax is the largest magnitude of that token and head; the rounding of
    ``dtype`` itself comes on top. The scale is kept in float32, or in float64 for a float64 model.
    """

    kind = "int8"
    of: PlainCodec | SingleCodec

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
    def exact(self) -> Codec:
        return self.of

    def dump(self) -> dict[str, Any]:
        return {**self.of.dump(), INT8: True}

    @classmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> Int8Codec:
        inside = EXACT.get(str(saved.get("kind")))
        return damaged(f"8 bits of {saved.get('kind')!r}") if inside is None else Int8Codec(inside.from_dump(saved))

    @property
    def scale_dtype(self) -> torch.dtype:
        return torch.promote_types(torch.float32, self.of.dtype)

    def streams(self) -> tuple[StreamShape, ...]:
        pairs = [(StreamShape(s.width, torch.int8), StreamShape(1, self.scale_dtype)) for s in self.of.streams()]
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


EXACT: dict[str, type[PlainCodec] | type[SingleCodec]] = {PlainCodec.kind: PlainCodec, SingleCodec.kind: SingleCodec}
INT8 = "int8"  # in a dump: "kind" is that of the codec inside
DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
WIDEST = 2**20  # heads and dimensions in a dump: more is no real model


def token_bytes(codec: Codec) -> int:
    """What it keeps of one token."""
    return codec.kv_heads * sum(stream.width * stream.dtype.itemsize for stream in codec.streams())


def dump_sizes(codec: Codec, dtype: torch.dtype) -> dict[str, Any]:
    """A codec that is known by its sizes and a dtype."""
    sizes = [codec.kv_heads, codec.key_dim, codec.value_dim]
    return {"kind": codec.kind, "sizes": sizes, "dtype": str(dtype).removeprefix("torch."), INT8: False}


def read_sizes(saved: Mapping[str, Any]) -> tuple[int, int, int, torch.dtype]:
    """Heads, width of keys, width of values and dtype, from what ``dump_sizes`` wrote."""
    sizes, dtype = saved.get("sizes"), DTYPES.get(str(saved.get("dtype")))
    if dtype is None or not isinstance(sizes, list) or len(sizes) != 3:
        damaged(f"a layer keeps {str(dict(saved))[:80]!r}")
    if not all(isinstance(n, int) and 0 < n < WIDEST for n in sizes):
        damaged(f"a layer keeps heads of {str(sizes)[:80]}")
    return sizes[0], sizes[1], sizes[2], dtype


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

    def dump(self, places: Tensor | int) -> list[Tensor]:
        """These places of every buffer, or so many from the front, in host memory."""
        self.settle()
        if isinstance(places, int):
            return [buffer.narrow(2, 0, places).contiguous().cpu() for buffer in self._buffers]
        return [buffer.index_select(-2, places.to(buffer.device)).cpu() for buffer in self._buffers]

    def load(self, streams: Sequence[Tensor], places: Tensor | int) -> None:
        """Put there what ``dump`` gave; raises ``CheckpointError`` where that does not fit."""
        n = places if isinstance(places, int) else len(places)
        for buffer, stream in zip(self._buffers, streams, strict=True):
            wanted = (*buffer.shape[:-2], n, buffer.shape[-1])
            if tuple(stream.shape) != wanted or stream.dtype != buffer.dtype:
                damaged(f"a tensor of {tuple(stream.shape)} in {stream.dtype} stands for {wanted} in {buffer.dtype}")
            if isinstance(places, int):
                buffer.narrow(2, 0, places).copy_(stream)
            else:
                buffer.index_copy_(-2, places.to(buffer.device), stream.to(buffer.device))

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
