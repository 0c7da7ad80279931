"""Products of one row with weights in blocks, as ``kernels.packed_layout`` lays them out.

The row is rounded to 16 bits with a scale for each block of 32, as on a CPU, and multiplied as whole numbers: its upper
and its lower bytes each meet four weights in one instruction (dp4a), in the order in which a word holds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.packed import DeviceBlocks, blocks_of, scales_of
from vantage.kernels.gpu.product import NONE, activated, dependent_option
from vantage.kernels.native import Format
from vantage.kernels.packed_layout import FORMS

Launch = Any  # triton's kernels: indexed by their grid, then called


@triton.jit
def _four(a, x, total, SIGNED: tl.constexpr, X_SIGNED: tl.constexpr, ASM: tl.constexpr):
    """total + the products of four bytes with four."""
    if ASM:
        if SIGNED and X_SIGNED:
            total = tl.inline_asm_elementwise(
                "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, x, total], dtype=tl.int32, is_pure=True, pack=1
            )
        elif SIGNED:
            total = tl.inline_asm_elementwise(
                "dp4a.s32.u32 $0, $1, $2, $3;", "=r,r,r,r", [a, x, total], dtype=tl.int32, is_pure=True, pack=1
            )
        elif X_SIGNED:
            total = tl.inline_asm_elementwise(
                "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, x, total], dtype=tl.int32, is_pure=True, pack=1
            )
        else:
            total = tl.inline_asm_elementwise(
                "dp4a.u32.u32 $0, $1, $2, $3;", "=r,r,r,r", [a, x, total], dtype=tl.int32, is_pure=True, pack=1
            )
    else:
        for i in tl.static_range(4):
            u, v = (a >> (8 * i)) & 255, (x >> (8 * i)) & 255
            if SIGNED:
                u = (u ^ 128) - 128
            if X_SIGNED:
                v = (v ^ 128) - 128
            total += u * v
    return total


@triton.jit
def _input(x, gain, k, inside, K, offset, NORM: tl.constexpr, FUNCTION: tl.constexpr, GATED: tl.constexpr):
    """What a norm without its size, or an activation, makes of an input; and the input."""
    raw = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
    v = activated(raw, FUNCTION)
    if GATED:
        v *= tl.load(x + K + k, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        v *= offset + tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    return v, raw


@triton.jit
def arrange(
    x, gain, numbers, scales, sums, squares, K, offset, NORM: tl.constexpr, FUNCTION: tl.constexpr,
    GATED: tl.constexpr, OPERANDS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A row as whole numbers of 16 bits, in the order that the words of a format have. ``OPERANDS``: of four numbers
    each, in a word. ``numbers``: the upper bytes of four inputs, and above them the lower ones; ``sums``: of 16 inputs
    each. The row is x, its norm, or the function of it (GATED: of its first half, times the second)."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    block = tl.program_id(0) * 32 + tl.arange(0, 32)
    i = tl.arange(0, 8)
    inside = (block < K // 32)[:, None] & (i < 8)[None, :]
    first = (i // OPERANDS * OPERANDS * 4 + i % OPERANDS * 2)[None, :] + block[:, None] * 32
    square = tl.zeros((32, 8), tl.float32)
    highest = tl.zeros((32, 8), tl.float32)
    for byte in tl.static_range(4):
        at = first + byte % 2 * 2 * OPERANDS + byte // 2
        v, raw = _input(x, gain, at, inside, K, offset, NORM, FUNCTION, GATED)
        square += raw * raw
        highest = tl.maximum(highest, tl.abs(v))
    most = tl.max(highest, 1)
    per = tl.where(most > 1e-30, 32767.0 / tl.maximum(most, 1e-30), 0.0)
    upper = tl.zeros((32, 8), tl.int32)
    lower = tl.zeros((32, 8), tl.int32)
    total = tl.zeros((32, 8), tl.int32)
    for byte in tl.static_range(4):
        at = first + byte % 2 * 2 * OPERANDS + byte // 2
        v, _ = _input(x, gain, at, inside, K, offset, NORM, FUNCTION, GATED)
        q = tl.floor(v * per[:, None] + 0.5).to(tl.int32)
        total += q
        upper |= ((q >> 8) & 255) << (8 * byte)
        lower |= (q & 255) << (8 * byte)
    both = (upper.to(tl.int64) & 0xFFFFFFFF) | (lower.to(tl.int64) << 32)
    tl.store(numbers + block[:, None] * 8 + i[None, :], both, mask=inside)
    scale = tl.where(most > 1e-30, most / 32767.0, 0.0)
    tl.store(scales + block, scale, mask=block < K // 32)
    halves = tl.sum(tl.reshape(total, (32, 2, 4)), 2).to(tl.float32) * scale[:, None]
    h = tl.arange(0, 2)
    tl.store(sums + block[:, None] * 2 + h[None, :], halves, mask=(block < K // 32)[:, None] & (h < 2)[None, :])
    tl.store(squares + tl.program_id(0), tl.sum(tl.sum(square, 1), 0))


@triton.jit
def product(
    numbers, scales, sums, squares, words, halves, factors, table, bias, out, partial, arrived, K, N, groups,
    parts_of_row, eps, NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    SHARE: tl.constexpr, WIDE: tl.constexpr, MINIMUM: tl.constexpr, NIBBLES: tl.constexpr, OFFSET: tl.constexpr,
    TABLE: tl.constexpr, SIGNED: tl.constexpr, INPUTS: tl.constexpr, SCALES: tl.constexpr, BYTES: tl.constexpr,
    TILE: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, PARTS_OF_ROW: tl.constexpr, ASM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out (N) = row · wᵀ + bias, or with ADD that more, for the 16 outputs of one group. A tile is so many shares: the
    inputs that have a scale in common. SPLITS: so many programs share the inputs of a group, and the last of them adds
    what they found, in their order; ``arrived`` counts them and is 0 before and after. DEPENDENT: it is launched while
    the row is arranged, by few programs, and reads its first weights meanwhile."""
    group = tl.program_id(0)
    lane = tl.arange(0, 16)
    PARTS: tl.constexpr = INPUTS // 32
    PART_BYTES: tl.constexpr = 64 * (LOW + HIGH)
    OPERANDS: tl.constexpr = 4 if LOW == 6 else 8 // LOW  # of a word; of three words where there are 6 bits
    LOADS: tl.constexpr = 3 if LOW == 6 else SHARE * LOW // 32  # words of a share
    WORDS: tl.constexpr = 1 if LOW == 6 else LOADS
    SHARES: tl.constexpr = 32 // SHARE  # of a part of 32 inputs
    first, stride = blocks_of(group, groups, K // INPUTS, BYTES)
    if DEPENDENT and STAGES > 1:
        tl.extra.cuda.gdc_wait()
    result = tl.zeros((TILE, 16), tl.float32)
    split = tl.program_id(1)
    per_split = tl.cdiv(K // SHARE, TILE * SPLITS) * TILE
    end = tl.minimum((split + 1) * per_split, K // SHARE)
    for start in tl.range(split * per_split, end, TILE, num_stages=STAGES):
        unit = start + tl.arange(0, TILE)
        inside = unit < K // SHARE
        part = unit // SHARES
        block = first + part // PARTS * stride
        begin = (block + SCALES + part % PARTS * PART_BYTES) // 4
        at = (begin + unit % SHARES * (SHARE * LOW // 32) * 16)[:, None] + lane[None, :]
        loaded = tl.tuple(())
        for w in tl.static_range(LOADS):
            word = tl.load(words + at + w * 16, mask=inside[:, None], other=0, eviction_policy="evict_first")
            loaded = loaded + (word,)  # noqa: RUF005 (Triton does not know the star)
        number = unit * (SHARE // 4)
        upper = tl.zeros((TILE, 16), tl.int32)
        lower = tl.zeros((TILE, 16), tl.int32)
        high = upper
        if HIGH:
            pair = unit % SHARES * (SHARE // 2)
            high = tl.load(words + begin[:, None] + 16 * LOW + lane[None, :], mask=inside[:, None], other=0)
            high = high >> pair[:, None]
        share = (part % PARTS * SHARES + unit % SHARES)[:, None]
        scale, minimum = scales_of(
            halves, factors, block[:, None], share, lane[None, :], inside[:, None], WIDE, MINIMUM, NIBBLES,
            INPUTS // SHARE,
        )  # fmt: skip
        if DEPENDENT and STAGES == 1:
            tl.extra.cuda.gdc_wait()  # from the second time on it has nothing to wait for
        for w in tl.static_range(WORDS):
            for j in tl.static_range(OPERANDS):
                if LOW == 6:
                    a, b, c = loaded
                    if j == 0:
                        four = (a & 0x003F003F) | ((a >> 2) & 0x3F003F00)
                    elif j == 1:
                        four = (b & 0x003F003F) | ((b >> 2) & 0x3F003F00)
                    elif j == 2:
                        four = (c & 0x003F003F) | ((c >> 2) & 0x3F003F00)
                    else:
                        four = ((a >> 6) & 0x000F000F) | ((b >> 2) & 0x00300030)
                        four = four | ((c << 2) & 0x0F000F00) | ((b << 4) & 0x30003000)
                elif LOW == 8:
                    four = loaded[w]
                elif LOW == 4:
                    four = (loaded[w] >> (4 * j)) & 0x0F0F0F0F
                else:
                    four = (loaded[w] >> (2 * j)) & 0x03030303
                if HIGH:
                    even = (high >> (w * 16 // LOW + j)) & 0x00010001
                    odd = (high >> (w * 16 // LOW + j + OPERANDS)) & 0x00010001
                    four = four | (even << LOW) | (odd << (8 + LOW))
                if TABLE:
                    four = (
                        tl.load(table + (four & 15))
                        | (tl.load(table + ((four >> 8) & 15)) << 8)
                        | (tl.load(table + ((four >> 16) & 15)) << 16)
                        | (tl.load(table + ((four >> 24) & 15)) << 24)
                    )
                both = tl.load(numbers + number + w * OPERANDS + j, mask=inside, other=0)[:, None]
                x = tl.broadcast_to(both.to(tl.int32), (TILE, 16))
                upper = _four(four, x, upper, SIGNED, True, ASM)
                x = tl.broadcast_to((both >> 32).to(tl.int32), (TILE, 16))
                lower = _four(four, x, lower, SIGNED, False, ASM)
        dot = (upper * 256 + lower).to(tl.float32) * tl.load(scales + part, mask=inside, other=0.0)[:, None]
        result += scale * dot
        if MINIMUM or OFFSET:
            plain = tl.load(sums + unit * (SHARE // 16), mask=inside, other=0.0)
            if SHARE == 32:
                plain += tl.load(sums + unit * 2 + 1, mask=inside, other=0.0)
            result += (minimum - scale * OFFSET) * plain[:, None]
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()  # for a program that had no tile
        tl.extra.cuda.gdc_launch_dependents()  # when the last programs are here, so that none waits for a place
    y = tl.sum(result, 0)
    last = True
    if SPLITS > 1:
        tl.store(partial + (group * SPLITS + split) * 16 + lane, y)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + group, 1, sem="acq_rel") == SPLITS - 1
        if last:
            y = tl.zeros((16,), tl.float32)
            for i in tl.static_range(SPLITS):
                y += tl.load(partial + (group * SPLITS + i) * 16 + lane, cache_modifier=".cg")
            tl.store(arrived + group, 0)
    if NORM:
        p = tl.arange(0, PARTS_OF_ROW)
        square = tl.sum(tl.load(squares + p, mask=p < parts_of_row, other=0.0), 0)
        y *= tl.rsqrt(square / K + eps)
    n = group * 16 + lane
    mine = (n < N) & last
    if BIAS:
        y += tl.load(bias + n, mask=mine, other=0.0).to(tl.float32)
    if ADD:
        y += tl.load(out + n, mask=mine, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=mine)


class ArrangedRow(NamedTuple):
    """What ``arrange`` makes of a row."""

    numbers: Tensor
    scales: Tensor
    sums: Tensor
    squares: Tensor


def arranged(
    x: Tensor,
    format: Format,
    *,
    gain: Tensor | None = None,
    offset: float = 0.0,
    function: int = NONE,
    gated: bool = False,
    dependent: bool = False,
) -> ArrangedRow:
    """A row (K) for weights of a format. ``gain``: the weight of an RMS norm, whose size the product divides by.
    ``function``: of the row first; ``gated``: of the first half of x (2K), times the second."""
    inputs = len(x) // 2 if gated else len(x)
    parts = triton.cdiv(inputs, 1024)

    def new(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(n, dtype=dtype, device=x.device)

    row = ArrangedRow(new(inputs // 4, torch.int64), new(inputs // 32), new(inputs // 16), new(parts))
    kernel: Launch = arrange
    kernel[(parts,)](
        x, x if gain is None else gain, *row, inputs, offset, NORM=gain is not None, FUNCTION=function, GATED=gated,
        OPERANDS=order_of(format), DEPENDENT=dependent, num_warps=4, **dependent_option(dependent),
    )  # fmt: skip
    return row


def order_of(format: Format) -> int:
    """Rows are in the same order for formats of which this is the same."""
    low = FORMS[format].low
    return 1 if low == 6 else 8 // low


class PackedTile(NamedTuple):
    """How a product is cut up."""

    shares: int
    warps: int
    stages: int = 1
    splits: int = 1


class SplitSums(NamedTuple):
    """What programs that share the inputs of a product leave for the last of them. Not for two products at once."""

    partial: Tensor
    arrived: Tensor

    @staticmethod
    def make(blocks: Iterable[DeviceBlocks], device: torch.device) -> SplitSums | None:
        """For the largest of these; ``None``: no product with them is split."""
        tiles = [(matrix.groups, tile_for(matrix).splits) for matrix in blocks]
        split = [(groups, splits) for groups, splits in tiles if splits > 1]
        if not split:
            return None
        partial = torch.empty(max(groups * splits * 16 for groups, splits in split), device=device)
        return SplitSums(partial, torch.zeros(max(groups for groups, _ in split), dtype=torch.int32, device=device))


def tile_for(blocks: DeviceBlocks) -> PackedTile:
    """As measured on an H200."""
    form = FORMS[blocks.format]
    if form.low == 8 or blocks.groups >= 4096:
        tile = PackedTile(64, 8)
    elif blocks.groups >= 1024:
        tile = PackedTile(16, 2) if form.share == 32 else PackedTile(64, 4)
    else:
        tile = PackedTile(64, 8, splits=2 if blocks.inputs >= 8192 else 1)
    shares = triton.next_power_of_2(blocks.inputs // form.share)
    return tile._replace(shares=min(tile.shares, shares))


def multiply(
    row: ArrangedRow,
    blocks: DeviceBlocks,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    eps: float | None = None,
    add: bool = False,
    dependent: bool = False,
    split_sums: SplitSums | None = None,
    tile: PackedTile | None = None,
) -> None:
    """A row by a matrix in blocks (N, K), into out (N). ``eps``: of the norm, if the row was arranged with one.
    ``split_sums``: without them every output has one program."""
    tile = tile or tile_for(blocks)
    splits, held = (1, (row.scales, row.scales)) if split_sums is None else (tile.splits, split_sums)
    form, parts = FORMS[blocks.format], len(row.squares)
    kernel: Launch = product
    kernel[(blocks.groups, splits)](
        *row, *blocks.views, out if bias is None else bias, out, *held, blocks.inputs, blocks.outputs,
        blocks.groups, parts, eps or 0.0, NORM=eps is not None, BIAS=bias is not None, ADD=add, **blocks.constants,
        SIGNED=form.low == 8 or form.table is not None, TILE=tile.shares, PARTS_OF_ROW=triton.next_power_of_2(parts),
        SPLITS=splits, STAGES=tile.stages, ASM=out.is_cuda and torch.version.hip is None, DEPENDENT=dependent,
        num_warps=tile.warps, **dependent_option(dependent),
    )  # fmt: skip
