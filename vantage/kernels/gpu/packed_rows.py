"""Products of a few rows with weights in blocks, as ``kernels.packed_layout`` lays them out, on the matrix units.

Every weight is read once, for all rows, and becomes a number of the model's type in registers. A word holds numbers of
several inputs, one after the other: the first number of all words is one product, the second another, so that nothing
is put into another order but the rows, which are few. Numbers of 6 bits have three words for 16 inputs instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.packed import DeviceBlocks, blocks_of, scales_of
from vantage.kernels.packed_layout import FORMS

Launch = Any  # triton's kernels: indexed by their grid, then called
FEWEST_ROWS = MOST_ROWS = 16  # that a product is made for; more were not measured
OUTPUTS = 64  # of one program: four groups, which stand side by side
PROGRAMS = 264  # two for each processor of an H200: with fewer outputs, programs share inputs


@triton.jit
def _tile(
    words, halves, factors, first, stride, lane, valid, start, count, LOW: tl.constexpr, HIGH: tl.constexpr,
    SHARE: tl.constexpr, WIDE: tl.constexpr, MINIMUM: tl.constexpr, NIBBLES: tl.constexpr, INPUTS: tl.constexpr,
    SCALES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """So many words of every output from ``start`` on, or threes of them, their fifth bits or second words (the same
    where there are none), third words, scales and minima, each (words, outputs)."""
    PARTS: tl.constexpr = INPUTS // 32
    OF_PART: tl.constexpr = 2 if LOW == 6 else LOW  # words of 32 inputs, or threes of them
    w = start + tl.arange(0, TILE)
    inside = (w < count)[:, None] & valid
    part, of_part = w // OF_PART, w % OF_PART
    block = first + (part // PARTS)[:, None] * stride
    begin = (block + (SCALES + part % PARTS * (64 * (LOW + HIGH)))[:, None]) // 4 + lane
    # 16 outputs side by side, from a multiple of 32 bytes on: the compiler does not see it
    begin = tl.max_contiguous(tl.multiple_of(begin, (1, 8)), (1, 16))
    at = words + begin + (of_part * (16 * LOW // OF_PART))[:, None]
    word = tl.load(at, mask=inside, other=0, eviction_policy="evict_first")
    high = word
    third = word
    if HIGH:
        high = tl.load(words + begin + 16 * LOW, mask=inside, other=0) >> (of_part * (16 // LOW))[:, None]
    if LOW == 6:
        high = tl.load(at + 16, mask=inside, other=0, eviction_policy="evict_first")
        third = tl.load(at + 32, mask=inside, other=0, eviction_policy="evict_first")
    share = (part % PARTS * 32 + of_part * (32 // OF_PART)) // SHARE
    scale, minimum = scales_of(
        halves, factors, block, share[:, None], lane, inside, WIDE, MINIMUM, NIBBLES, INPUTS // SHARE
    )
    return word, high, third, scale, minimum


@triton.jit
def _number(word, high, third, i: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    """The number of input i of a word, or of three: see ``kernels.packed_layout``."""
    if LOW == 6:
        half = i % 2 * 16
        if i < 4:
            number = word >> (half + i // 2 % 2 * 10)
        elif i < 8:
            number = high >> (half + i // 2 % 2 * 10)
        elif i < 12:
            number = third >> (half + i // 2 % 2 * 10)
        elif i < 14:
            number = ((word >> (half + 6)) & 15) | ((high >> (half + 6)) & 3) << 4
        else:
            number = ((third >> (half + 6)) & 15) | ((high >> (half + 8)) & 3) << 4
        number = number & 63
    else:
        number = (word >> (i // 2 * LOW + i % 2 * 16)) & ((1 << LOW) - 1)
        if HIGH:
            number |= ((high >> (i // 2 + i % 2 * 16)) & 1) << LOW
    return number


@triton.jit
def product(
    x, words, halves, factors, table, bias, out, partial, arrived, K, N, groups, rows, out_stride, BIAS: tl.constexpr,
    ADD: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, SHARE: tl.constexpr, WIDE: tl.constexpr,
    MINIMUM: tl.constexpr, NIBBLES: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr, INPUTS: tl.constexpr,
    SCALES: tl.constexpr, BYTES: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out (rows, N) = x · wᵀ + bias, or with ADD that more; x as ``arranged`` has it. A tile is so many words of every
    output. SPLITS: so many programs share the inputs, and the last of them adds what they found, in their order.
    A tile is read while the one before is multiplied."""
    n = tl.program_id(0) * LANES + tl.arange(0, LANES)
    m = tl.arange(0, ROWS)
    split = tl.program_id(1)
    IN_WORD: tl.constexpr = 16 if LOW == 6 else 32 // LOW  # inputs
    count = K // IN_WORD
    first, stride = blocks_of(tl.minimum(n // 16, groups - 1), groups, K // INPUTS, BYTES)
    first, stride, lane, valid = first[None, :], stride[None, :], (n % 16)[None, :], (n < groups * 16)[None, :]
    acc = tl.zeros((LANES, ROWS), tl.float32)
    per_split = tl.cdiv(count, TILE * SPLITS) * TILE
    begin = split * per_split
    end = tl.minimum(begin + per_split, count)
    word, high, third, scale, minimum = _tile(
        words, halves, factors, first, stride, lane, valid, begin, end, LOW, HIGH, SHARE, WIDE, MINIMUM, NIBBLES,
        INPUTS, SCALES, TILE,
    )  # fmt: skip
    for start in tl.range(begin, end, TILE, num_stages=1):
        w = start + tl.arange(0, TILE)
        loaded = tl.tuple(())
        for i in tl.static_range(IN_WORD):  # all at once, since each of them waits for the memory
            at = (i * count + w)[:, None] * ROWS + m[None, :]
            row = tl.load(x + at, mask=(w < end)[:, None], other=0.0)
            loaded = loaded + (row,)  # noqa: RUF005 (Triton does not know the star)
        next_word, next_high, next_third, next_scale, next_minimum = _tile(
            words, halves, factors, first, stride, lane, valid, start + TILE, end, LOW, HIGH, SHARE, WIDE, MINIMUM,
            NIBBLES, INPUTS, SCALES, TILE,
        )  # fmt: skip
        for i in tl.static_range(IN_WORD):
            number = _number(word, high, third, i, LOW, HIGH)
            if TABLE:
                value = ((tl.load(table + number) ^ 128) - 128).to(tl.float32) * scale
            else:  # the bits of 2**23 and the number are the float of their sum: converting takes four times as long
                if LOW == 8:
                    number = number ^ 128
                value = (number | 0x4B000000).to(tl.float32, bitcast=True)
                value = (value - (8388608.0 + (128 if LOW == 8 else OFFSET))) * scale
            if MINIMUM:
                value += minimum
            acc = tl.dot(tl.trans(value.to(x.dtype.element_ty)), loaded[i], acc, input_precision=PRECISION)
        word, high, third, scale, minimum = next_word, next_high, next_third, next_scale, next_minimum
    last = True
    if SPLITS > 1:
        mine = partial + tl.program_id(0) * (SPLITS * LANES * ROWS) + (n % LANES)[:, None] * ROWS + m[None, :]
        tl.store(mine + split * (LANES * ROWS), acc)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == SPLITS - 1
        if last:
            acc = tl.zeros((LANES, ROWS), tl.float32)
            for i in tl.static_range(SPLITS):
                acc += tl.load(mine + i * (LANES * ROWS), cache_modifier=".cg")
            tl.store(arrived + tl.program_id(0), 0)
    kept = (n < N)[:, None] & (m < rows)[None, :] & last
    to = out + m[None, :].to(tl.int64) * out_stride + n[:, None]
    if BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    if ADD:
        acc += tl.load(to, mask=kept, other=0.0).to(tl.float32)
    tl.store(to, acc.to(out.dtype.element_ty), mask=kept)


class RowsTile(NamedTuple):
    """How a product is cut up."""

    words: int
    warps: int
    splits: int


class RowSums(NamedTuple):
    """What programs that share the inputs of a product leave for the last of them. Not for two products at once."""

    partial: Tensor
    arrived: Tensor

    @staticmethod
    def make(blocks: Iterable[DeviceBlocks], rows: int, device: torch.device) -> RowSums | None:
        """For the largest of these with so many rows; ``None``: no product with them is split."""
        width = width_for(rows)
        programs = [(triton.cdiv(one.outputs, OUTPUTS), tile_for(one).splits) for one in blocks if takes(one, rows)]
        split = [(count, splits) for count, splits in programs if splits > 1]
        if not split:
            return None
        partial = torch.empty(max(count * splits * OUTPUTS * width for count, splits in split), device=device)
        return RowSums(partial, torch.zeros(max(count for count, _ in split), dtype=torch.int32, device=device))


def takes(blocks: DeviceBlocks, rows: int) -> bool:
    """Whether so many rows meet these blocks as they are."""
    return 1 < rows <= MOST_ROWS


def inputs_at_once(low: int) -> int:
    """Of a word, or of three."""
    return 16 if low == 6 else 32 // low


def width_for(rows: int) -> int:
    """The rows that a kernel is made for, of which some may be nothing."""
    return max(FEWEST_ROWS, triton.next_power_of_2(rows))


def tile_for(blocks: DeviceBlocks) -> RowsTile:
    """As measured on an H200, by the matrix alone."""
    words, programs = 32, triton.cdiv(blocks.outputs, OUTPUTS)
    tiles = triton.cdiv(blocks.inputs // inputs_at_once(FORMS[blocks.format].low), words)
    return RowsTile(words, 4, max(1, min(8, tiles // 2, PROGRAMS // programs)))


def arranged(x: Tensor, low: int) -> Tensor:
    """x (rows, K) as (inputs of a word, words, rows): the first input of every word, the second, and so on."""
    (rows, inputs), at_once = x.shape, inputs_at_once(low)
    out = x.new_zeros((at_once, inputs // at_once, width_for(rows)))
    out[:, :, :rows] = x.view(rows, -1, at_once).permute(2, 1, 0)
    return out


def multiply(
    x: Tensor,
    blocks: DeviceBlocks,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    add: bool = False,
    sums: RowSums | None = None,
    tile: RowsTile | None = None,
) -> None:
    """x (rows, K) by a matrix in blocks (N, K), into out (rows, N), or added to it. ``sums``: without them no two
    programs share the inputs."""
    tile = tile or tile_for(blocks)
    programs, row = triton.cdiv(blocks.outputs, OUTPUTS), arranged(x, FORMS[blocks.format].low)
    splits, held = (1, (out, out)) if sums is None else (tile.splits, sums)
    kernel: Launch = product
    kernel[(programs, splits)](
        row, *blocks.views, out if bias is None else bias, out, *held, blocks.inputs, blocks.outputs, blocks.groups,
        len(x), out.stride(0), BIAS=bias is not None, ADD=add, **blocks.constants, TILE=tile.words, SPLITS=splits,
        ROWS=row.shape[2], LANES=OUTPUTS,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", num_warps=tile.warps,
    )  # fmt: skip
