"""In which form and precision keys and values are kept: a codec turns them into streams and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from vantage.cache.dump import damaged
from vantage.errors import BadInput
from vantage.spec.kept import KeptStream


class StreamShape(NamedTuple):
    """One tensor that is kept for every token and key/value head."""

    width: int
    dtype: torch.dtype
    heads: int | None = None  # None: as many as there are key/value heads
    running: bool = False  # the sum over the row of what is given

    @staticmethod
    def of(stream: KeptStream, dtype: torch.dtype) -> StreamShape:
        """For a model of this dtype."""
        return StreamShape(stream.width, stream.dtype(dtype), stream.heads, stream.running)


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
        if not self.kv_heads:  # a layer that keeps states alone
            return ()
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


class RoundingCodec(Codec):
    """Another codec's keys and values in fewer bits."""

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
    def exact(self) -> PlainCodec | SingleCodec:
        return self.of


class StreamCodec(RoundingCodec):
    """Rounds each stream of the other codec by itself."""

    mark: ClassVar[str]  # in a dump, where "kind" is that of the codec inside

    def dump(self) -> dict[str, Any]:
        return {**self.of.dump(), self.mark: True}


class PackedCodec(RoundingCodec):
    """Several numbers to a byte, with ranges or lengths beside them."""

    @property
    def scale_dtype(self) -> torch.dtype:
        """Of ranges and lengths: two bytes where the model has two."""
        return torch.float16 if self.of.dtype.itemsize == 2 else self.of.dtype

    def dump_with(self, **numbers: int) -> dict[str, Any]:
        """As ``read_packed`` reads it."""
        return {**self.of.dump(), "kind": self.kind, "of": self.of.kind, **numbers}


class GroupCodec(Codec):
    """Keeps so many tokens of a row together: they are encoded at once. Until then they are kept as ``exact`` says."""

    group: int


@final
@dataclass(frozen=True)
class HalfCodec(StreamCodec):
    """Half precision: 11 bits of every number."""

    kind = mark = "half"
    of: PlainCodec | SingleCodec

    @classmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> HalfCodec:
        return HalfCodec(_inside(saved))

    def streams(self) -> tuple[StreamShape, ...]:
        return tuple(StreamShape(s.width, torch.float16) for s in self.of.streams())

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.to(torch.float16) for x in self.of.encode(k_BGTd, v_BGTe))

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return self.of.decode([x.to(self.of.dtype) for x in streams])


@final
@dataclass(frozen=True)
class Int8Codec(StreamCodec):
    """8 bits: whole numbers from -127 to 127 and one scale per token and head.

    The scale is absmax / 127, so what is read differs from what was written by at most
    absmax / 254, where absmax is the largest magnitude of that token and head; the rounding of
    ``dtype`` itself comes on top. The scale is kept in float32, or in float64 for a float64 model.
    """

    kind = mark = "int8"
    of: PlainCodec | SingleCodec

    @classmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> Int8Codec:
        return Int8Codec(_inside(saved))

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


def _inside(saved: Mapping[str, Any]) -> PlainCodec | SingleCodec:
    inside = EXACT.get(str(saved.get("kind")))
    return damaged(f"fewer bits of {saved.get('kind')!r}") if inside is None else inside.from_dump(saved)


def read_packed(saved: Mapping[str, Any], *names: str) -> tuple[PlainCodec | SingleCodec, list[int]]:
    """The codec inside a ``PackedCodec``, and the numbers of these names."""
    inside = EXACT.get(str(saved.get("of")))
    numbers = [n for name in names if type(n := saved.get(name)) is int]
    if inside is None or len(numbers) != len(names):
        return damaged(f"a layer keeps {str(dict(saved))[:80]!r}")
    return inside.from_dump(saved), numbers


ROUNDING: dict[str, type[HalfCodec] | type[Int8Codec]] = {"float16": HalfCodec, "int8": Int8Codec}


def rounded(codec: Codec, kv_dtype: str | None) -> Codec:
    """In this precision; a codec that rounds already stays what it is, and so does one that keeps nothing."""
    if kv_dtype is None or not isinstance(codec, (PlainCodec, SingleCodec)) or not codec.kv_heads:
        return codec
    return ROUNDING[kv_dtype](codec)


EXACT: dict[str, type[PlainCodec] | type[SingleCodec]] = {PlainCodec.kind: PlainCodec, SingleCodec.kind: SingleCodec}
DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
WIDEST = 2**20  # heads and dimensions in a dump: more is no real model


def token_bytes(codec: Codec, streams: Sequence[StreamShape] = ()) -> int:
    """What is kept of one token, with these streams beside its key and value."""
    every = (*codec.streams(), *streams)
    return sum((s.heads or codec.kv_heads) * s.width * s.dtype.itemsize for s in every)


def dump_sizes(codec: Codec, dtype: torch.dtype) -> dict[str, Any]:
    """A codec that is known by its sizes and a dtype."""
    sizes = [codec.kv_heads, codec.key_dim, codec.value_dim]
    return {"kind": codec.kind, "sizes": sizes, "dtype": str(dtype).removeprefix("torch."), Int8Codec.mark: False}


def read_sizes(saved: Mapping[str, Any]) -> tuple[int, int, int, torch.dtype]:
    """Heads, width of keys, width of values and dtype, from what ``dump_sizes`` wrote."""
    sizes, dtype = saved.get("sizes"), DTYPES.get(str(saved.get("dtype")))
    if dtype is None or not isinstance(sizes, list) or len(sizes) != 3:
        damaged(f"a layer keeps {str(dict(saved))[:80]!r}")
    if not all(isinstance(n, int) and 0 < n < WIDEST for n in sizes) and sizes != [0, 0, 0]:  # a layer of states alone
        damaged(f"a layer keeps heads of {str(sizes)[:80]}")
    return sizes[0], sizes[1], sizes[2], dtype


def dump_streams(streams: Sequence[StreamShape]) -> list[Any]:
    """What JSON can hold: enough for ``read_streams``."""
    return [[s.width, str(s.dtype).removeprefix("torch."), s.heads, s.running] for s in streams]


def read_streams(saved: Any) -> tuple[StreamShape, ...]:
    if not isinstance(saved, list) or not all(isinstance(row, list) and len(row) == 4 for row in saved):
        damaged(f"a layer keeps the streams {str(saved)[:80]!r}")
    streams = []
    for width, name, heads, running in saved:
        sizes = all(type(n) is int and 0 < n < WIDEST for n in (width, heads))
        if not sizes or str(name) not in DTYPES or not isinstance(running, bool):
            damaged(f"a layer keeps the streams {str(saved)[:80]!r}")
        streams.append(StreamShape(width, DTYPES[name], heads, running))
    return tuple(streams)
