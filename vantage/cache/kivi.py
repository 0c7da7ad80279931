"""Keys and values in two or four bits, in groups (KIVI, Liu et al. 2024).

A key's large numbers stand in the same few channels from token to token: each channel is rounded between the smallest
and the largest of its numbers over a group of tokens, so that a large channel costs no other its precision. Values have
no such channels: they are rounded token by token, between the smallest and the largest of a few channels at a time.

What a group of keys shares, the smallest number and the step of every channel, is kept in equal parts by its tokens: so
all that is kept belongs to some token, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.cache.codecs import Codec, GroupCodec, PackedCodec, PlainCodec, SingleCodec, StreamShape, read_packed
from vantage.cache.low_bits import pack, packed_bytes, range_codes, unpack
from vantage.errors import BadInput

BITS = (2, 4)


def check_groups(bits: int, group: int, channels: int) -> None:
    if bits not in BITS:
        raise BadInput(f"bits={bits}: keys and values are packed in 2 or 4 bits")
    if group < 2 or channels < 2:
        raise BadInput(f"groups of {group} tokens and {channels} channels: give 2 or more, one number has no range")


@final
@dataclass(frozen=True)
class KiviCodec(PackedCodec, GroupCodec):  # pyright: ignore[reportIncompatibleVariableOverride] (read only, as in a frozen dataclass)
    """Another codec's keys in groups of ``group`` tokens, its values in groups of ``channels`` channels."""

    kind = "kivi"
    of: PlainCodec | SingleCodec
    bits: int = 2
    group: int = 32
    channels: int = 32

    def __post_init__(self) -> None:
        check_groups(self.bits, self.group, self.channels)

    def streams(self) -> tuple[StreamShape, ...]:
        share = -(-2 * self.key_dim // self.group)  # a token's part of what its group shares
        keys = StreamShape(packed_bytes(self.key_dim, self.bits), torch.uint8), StreamShape(share, self.scale_dtype)
        if len(self.of.streams()) == 1:  # the value is the front of the key
            return keys
        ranges = 2 * -(-self.value_dim // self.channels)
        values = StreamShape(packed_bytes(self.value_dim, self.bits), torch.uint8)
        return (*keys, values, StreamShape(ranges, self.scale_dtype))

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        """Of whole groups."""
        keys = self._encode_keys(k_BGTd)
        return keys if len(self.of.streams()) == 1 else (*keys, *self._encode_values(v_BGTe))

    def _encode_keys(self, k_BGTd: Tensor) -> tuple[Tensor, Tensor]:
        grouped = k_BGTd.unflatten(2, (-1, self.group)).transpose(-1, -2)  # (B, G, groups, d, group)
        codes, scales = range_codes(grouped, self.bits, self.scale_dtype)
        flat = scales.flatten(-2)  # (B, G, groups, 2 d)
        shares = F.pad(flat, (0, -flat.shape[-1] % self.group)).unflatten(-1, (self.group, -1))
        return pack(codes.transpose(-1, -2).flatten(2, 3), self.bits), shares.flatten(2, 3)

    def _encode_values(self, v_BGTe: Tensor) -> tuple[Tensor, Tensor]:
        parts = [range_codes(part, self.bits, self.scale_dtype) for part in v_BGTe.split(self.channels, -1)]
        codes, scales = zip(*parts, strict=True)
        return pack(torch.cat(codes, -1), self.bits), torch.cat(scales, -1)

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Any number of tokens from the beginning of a row; those of a last group that is not whole mean nothing."""
        keys = self._decode_keys(streams[0], streams[1])
        if len(streams) == 2:
            return self.of.decode([keys])
        return self.of.decode([keys, self._decode_values(streams[2], streams[3])])

    def _decode_keys(self, packed: Tensor, shares: Tensor) -> Tensor:
        S, d = packed.shape[2], self.key_dim
        packed, shares = (F.pad(x, (0, 0, 0, -S % self.group)) for x in (packed, shares))
        scales = shares.unflatten(2, (-1, self.group)).flatten(-2)[..., : 2 * d].unflatten(-1, (d, 2))
        low, step = scales.to(self._wide).repeat_interleave(self.group, 2).unbind(-1)
        return (unpack(packed, d, self.bits) * step + low)[:, :, :S].to(self.of.dtype)

    def _decode_values(self, packed: Tensor, ranges: Tensor) -> Tensor:
        scales = ranges.to(self._wide).unflatten(-1, (-1, 2)).repeat_interleave(self.channels, -2)
        low, step = scales[..., : self.value_dim, :].unbind(-1)
        return (unpack(packed, self.value_dim, self.bits) * step + low).to(self.of.dtype)

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.of.dtype, torch.float32)

    def dump(self) -> dict[str, Any]:
        return self.dump_with(bits=self.bits, group=self.group, channels=self.channels)

    @classmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> KiviCodec:
        inside, numbers = read_packed(saved, "bits", "group", "channels")
        return KiviCodec(inside, *numbers)


def grouped(codec: PlainCodec | SingleCodec, bits: int, group: int, channels: int) -> Codec:
    """In groups; one that keeps nothing stays what it is."""
    return KiviCodec(codec, bits, group, channels) if codec.kv_heads else codec
