"""Weights in blocks on a GPU, as ``kernels.packed_layout`` lays them out: where they are, and unpacked."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.native import Format
from vantage.kernels.packed_layout import BLOCK, FORMS, SUPER
from vantage.spec.native import LANES

Launch = Any  # triton's kernels: indexed by their grid, then called


@triton.jit
def scales_of(
    halves, factors, block, share, lane, inside, WIDE: tl.constexpr, MINIMUM: tl.constexpr, NIBBLES: tl.constexpr,
    SHARES: tl.constexpr,
):  # fmt: skip
    """Scale and minimum of a share of a block that begins at this byte."""
    scale = tl.load(halves + block // 2 + lane, mask=inside, other=0.0).to(tl.float32)
    minimum = scale * 0.0
    if MINIMUM:
        minimum = tl.load(halves + block // 2 + 16 + lane, mask=inside, other=0.0).to(tl.float32)
    if WIDE:
        at = block + 32 * (1 + MINIMUM) + share * 16 + lane
        factor = tl.load(factors + at, mask=inside, other=0).to(tl.int32)
        if NIBBLES:
            scale *= (factor & 15).to(tl.float32)
            minimum *= -((factor >> 4) & 15).to(tl.float32)
        else:
            scale *= factor.to(tl.float32)
            if MINIMUM:
                minimum *= -tl.load(factors + at + SHARES * 16, mask=inside, other=0).to(tl.float32)
    return scale, minimum


@triton.jit
def blocks_of(group, groups, count, BYTES: tl.constexpr):
    """Where a group's first block is, and how far its next: four groups stand side by side, the last ones fewer."""
    whole = groups // 4 * 4
    stride = tl.where(group < whole, 4, groups - whole).to(tl.int64) * BYTES
    first = (group - group % 4).to(tl.int64) * count * BYTES + (group % 4) * BYTES
    return first, stride


@triton.jit
def unpack(
    words, halves, factors, table, ids, out, K, N, groups, GATHER: tl.constexpr, LOW: tl.constexpr,
    HIGH: tl.constexpr, SHARE: tl.constexpr, WIDE: tl.constexpr, MINIMUM: tl.constexpr, NIBBLES: tl.constexpr,
    OFFSET: tl.constexpr, TABLE: tl.constexpr, INPUTS: tl.constexpr, SCALES: tl.constexpr, BYTES: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The weights of some outputs, (outputs, K): of those that ``ids`` name, or of all N."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = r
    if GATHER:
        n = tl.load(ids + r, mask=r < N, other=0).to(tl.int32)
    k = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (r < N)[:, None] & (k < K)[None, :]
    PARTS: tl.constexpr = INPUTS // 32
    first, stride = blocks_of(n // 16, groups, K // INPUTS, BYTES)
    lane = (n % 16)[:, None]
    part = k // 32
    block = first[:, None] + (part // PARTS)[None, :] * stride[:, None]
    byte = block + (SCALES + part % PARTS * (64 * (LOW + HIGH)))[None, :]
    pair, half = k % 32 // 2, (k % 2 * 16)[None, :]
    if LOW == 6:
        triple, p = pair // 8 * 3, pair % 8
        at = byte // 4 + lane
        q = tl.where(p < 6, p // 2, tl.where(p == 6, 0, 2))
        w = tl.load(words + at + ((triple + q) * 16)[None, :], mask=inside, other=0) >> half
        middle = (tl.load(words + at + ((triple + 1) * 16)[None, :], mask=inside, other=0) >> half >> 6) & 15
        ends = (w >> (p % 2 * 10)[None, :]) & 63
        six = (p == 6)[None, :]
        number = tl.where((p < 6)[None, :], ends, ((w >> 6) & 15) | tl.where(six, middle & 3, middle >> 2) << 4)
    else:
        at = byte // 4 + (pair // (16 // LOW) * 16)[None, :] + lane
        word = tl.load(words + at, mask=inside, other=0)
        number = (word >> ((pair % (16 // LOW) * LOW)[None, :] + half)) & ((1 << LOW) - 1)
        if HIGH:
            more = tl.load(words + byte // 4 + 16 * LOW + lane, mask=inside, other=0)
            number |= ((more >> (pair[None, :] + half)) & 1) << LOW
        if LOW == 8:
            number = (number ^ 128) - 128
    if TABLE:
        value = (tl.load(table + number) ^ 128) - 128
    else:
        value = number - OFFSET
    share = (part % PARTS * 32 + k % 32) // SHARE
    scale, minimum = scales_of(
        halves, factors, block, share[None, :], lane, inside, WIDE, MINIMUM, NIBBLES, INPUTS // SHARE
    )
    value = value.to(tl.float32) * scale + minimum
    tl.store(out + r.to(tl.int64)[:, None] * K + k[None, :], value.to(out.dtype.element_ty), mask=inside)


class DeviceBlocks(NamedTuple):
    """A matrix (outputs, inputs) in blocks, on a GPU."""

    data: Tensor  # bytes
    format: Format
    outputs: int
    inputs: int

    @property
    def constants(self) -> dict[str, Any]:
        form = FORMS[self.format]
        assert form.number is None, "numbers of 16 bits are no blocks"
        return {
            "LOW": form.low, "HIGH": form.high, "SHARE": form.share, "WIDE": form.wide, "MINIMUM": form.minimum,
            "NIBBLES": form.nibbles, "OFFSET": form.offset, "TABLE": form.table is not None,
            "INPUTS": form.inputs, "SCALES": form.scales, "BYTES": form.bytes,
        }  # fmt: skip

    @property
    def views(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The bytes as words, as scales and as factors; and the table of numbers, where there is one."""
        half = torch.bfloat16 if self.format is Format.MXFP4 else torch.float16
        table = _table(self.format, self.data.device)
        return self.data.view(torch.int32), self.data.view(half), self.data.view(torch.int8), table

    @property
    def groups(self) -> int:
        return -(-self.outputs // LANES)


@lru_cache
def _table(format: Format, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor([n & 255 for n in FORMS[format].table or (0,)], dtype=torch.int32, device=device)


def unpacked(blocks: DeviceBlocks, dtype: torch.dtype, ids: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """The weights (N, K), or of the outputs that ``ids`` name."""
    count = blocks.outputs if ids is None else ids.numel()
    if out is None:
        out = torch.empty((count, blocks.inputs), dtype=dtype, device=blocks.data.device)
    rows, tile = (LANES, 128) if ids is None else (1, 1024)
    kernel: Launch = unpack
    kernel[(triton.cdiv(count, rows), triton.cdiv(blocks.inputs, tile))](
        *blocks.views, out if ids is None else ids, out, blocks.inputs, count, blocks.groups, GATHER=ids is not None,
        **blocks.constants, ROWS=rows, TILE=tile, num_warps=4,
    )  # fmt: skip
    return out


assert (BLOCK, SUPER, LANES) == (32, 4, 16), "the kernels above are written for these"
