"""Keys and values in 16 bits, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from vantage.cache.codecs import Codec, PlainCodec, StreamShape, dump_sizes, read_sizes, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.kind import LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.spec.registry import Entry, Refusal

HALF = torch.bfloat16


@final
@dataclass(frozen=True)
class HalfCodec(Codec):
    """Rounded to bfloat16 when written, and given back in the model's dtype."""

    kind = "half"
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype = torch.float32

    @property
    def exact(self) -> PlainCodec:
        return PlainCodec(self.kv_heads, self.key_dim, self.value_dim, self.dtype)

    def streams(self) -> tuple[StreamShape, ...]:
        return StreamShape(self.key_dim, HALF), StreamShape(self.value_dim, HALF)

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        return k_BGTd.to(HALF), v_BGTe.to(HALF)

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return streams[0].to(self.dtype), streams[1].to(self.dtype)

    def dump(self) -> dict[str, Any]:
        return dump_sizes(self, self.dtype)

    @classmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> HalfCodec:
        return HalfCodec(*read_sizes(saved))


@final
@dataclass(frozen=True)
class HalfCache:
    """The contiguous arrangement, in 16 bits."""

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Contiguous,)
    codecs: ClassVar[tuple[type[Codec], ...]] = (HalfCodec,)
    exact: ClassVar[bool] = False
    evicts: ClassVar[bool] = False

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        return "16 bits are for keys and values apart" if any(layer.single_stream for layer in layers) else None

    def ledger(self, need: LedgerNeed) -> Ledger:
        return ContiguousCache().ledger(need)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return HalfCodec(layer.kv_heads, layer.key_dim, layer.value_dim, dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        assert need.capacity is not None
        return need.batch * need.capacity * token_bytes(self.codec(layer, dtype))


ENTRY = Entry(
    "half",
    HalfCache,
    title="Half",
    summary="Contiguous, in bfloat16.",
    refusals=(Refusal({"attention": ("latent",)}, "keys and values apart"),),
)
