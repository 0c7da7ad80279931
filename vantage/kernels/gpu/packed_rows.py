"""Products of a few rows with weights in blocks, as ``kernels.packed_layout`` lays them out, on the matrix units.

Every weight is read once, for all rows, and becomes a number of the model's type in registers. A word holds numbers of
several inputs, one after the other: the first number of all words is one product, the second another, so that nothing
is put into another order but the rows, which are few.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.packed import DeviceBlocks, scales_of
from vantage.kernels.native import Format
from vantage.kernels.packed_layout import FORMS

Launch = Any  # triton's kernels: indexed by their grid, then called
FEWEST_ROWS, MOST_ROWS = 16, 64  # that a product is made for; with more, unpacking the weights costs less
OUTPUTS = 64  # of one program: four groups, which stand side by side
PROGRAMS = 264  # two for each processor of an H200: with fewer outputs, programs share inputs


@triton.jit
def _place_of_four(half, PLACE: tl.constexpr):
    """The bits of one of four numbers, and those of 2**23, in one instruction: a compiler takes two."""
    if PLACE == 0:
        number = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0xF, 0x4B000000, 0xEA;", "=r,r", [half], dtype=tl.int32, is_pure=True, pack=1
        )
    elif PLACE == 1:
        number = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0xF0, 0x4B000000, 0xEA;", "=r,r", [half], dtype=tl.int32, is_pure=True, pack=1
        )
    elif PLACE == 2:
        number = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0xF00, 0x4B000000, 0xEA;", "=r,r", [half], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        number = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0xF000, 0x4B000000, 0xEA;", "=r,r", [half], dtype=tl.int32, is_pure=True, pack=1
        )
    return number


@triton.jit
def product(
    x, words, halves, factors, table, bias, out, partial, arrived, K, N, groups, rows, out_stride, BIAS: tl.constexpr,
    ADD: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, SHARE: tl.constexpr, WIDE: tl.constexpr,
    MINIMUM: tl.constexpr, NIBBLES: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr, INPUTS: tl.constexpr,
    SCALES: tl.constexpr, BYTES: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    LANES: tl.constexpr, PRECISION: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """out (rows, N) = x · wᵀ + bias, or with ADD that more; x as ``arranged`` has it. A tile is so many words of every
    output. SPLITS: so many programs share the inputs, and the last of them adds what they found, in their order."""
    four = tl.program_id(0)  # groups that stand side by side; of the last ones there may be fewer
    i = tl.arange(0, LANES)
    n = four * LANES + i
    m = tl.arange(0, ROWS)
    split = tl.program_id(1)
    PARTS: tl.constexpr = INPUTS // 32
    IN_WORD: tl.constexpr = 32 // LOW  # inputs
    count = K // IN_WORD
    side_by_side = tl.minimum(groups - four * 4, 4)
    base = four.to(tl.int64) * 4 * (K // INPUTS) * BYTES
    words += base // 4
    halves += base // 2
    factors += base
    # offsets from there, in bytes: of a group's first block, and of an output in it
    valid = (i // 16 < side_by_side)[None, :]
    group = tl.where(valid, (i // 16 * BYTES)[None, :], 0)
    lane = (i % 16)[None, :]
    acc = tl.zeros((LANES, ROWS), tl.float32)
    per_split = tl.cdiv(count, TILE * SPLITS) * TILE
    begin = split * per_split
    end = tl.minimum(begin + per_split, count)
    for start in tl.range(begin, end, TILE, num_stages=1):
        w = start + tl.arange(0, TILE)
        inside = (w < end)[:, None] & valid
        loaded = tl.tuple(())
        for j in tl.static_range(IN_WORD):  # all at once, since each of them waits for the memory
            row = tl.load(x + (j * count + w)[:, None] * ROWS + m[None, :], mask=(w < end)[:, None], other=0.0)
            loaded = loaded + (row,)  # noqa: RUF005 (Triton does not know the star)
        part, of_part = w // LOW, w % LOW
        block = (part // PARTS * (side_by_side * BYTES))[:, None] + group
        at = (SCALES + part % PARTS * (64 * (LOW + HIGH)))[:, None] + block + lane * 4
        # 16 outputs side by side, from a multiple of 32 bytes on: the compiler does not see it
        at = tl.max_contiguous(tl.multiple_of(at // 4, (1, 8)), (1, 16))
        word = tl.load(words + at + (of_part * 16)[:, None], mask=inside, other=0, eviction_policy="evict_first")
        high = word
        if HIGH:
            high = tl.load(words + at + 16 * LOW, mask=inside, other=0) >> (of_part * (16 // LOW))[:, None]
        share = ((part % PARTS * 32 + of_part * IN_WORD) // SHARE)[:, None]
        scale, minimum = scales_of(halves, factors, block, share, lane, inside, WIDE, MINIMUM, NIBBLES, INPUTS // SHARE)
        upper = word >> 16
        if LOW == 2:
            upper = upper & 0xFFFF
        for j in tl.static_range(IN_WORD):
            # where the number stands in its half of the word it is so many times as large: ``arranged`` divides
            half = word
            if j % 2:
                half = upper
            if HIGH or TABLE:
                number = (half >> (j // 2 * LOW)) & ((1 << LOW) - 1)
                if HIGH:
                    number |= ((high >> (j // 2 + j % 2 * 16)) & 1) << LOW
                if TABLE:
                    value = ((tl.load(table + number) ^ 128) - 128).to(tl.float32)
                else:
                    value = (number | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + OFFSET)
                value *= scale
            else:
                # the bits of 2**23 and a number are the float of their sum: converting takes four times as long
                if ASM and LOW == 4:
                    number = _place_of_four(half, j // 2)
                else:
                    number = (half & (((1 << LOW) - 1) << (j // 2 * LOW))) | 0x4B000000
                if LOW == 8:
                    number = number ^ (128 << (j // 2 * LOW))
                less = 8388608.0 + (128 if LOW == 8 else OFFSET) * (1 << (j // 2 * LOW))
                value = (number.to(tl.float32, bitcast=True) - less) * scale
            if MINIMUM:
                if HIGH:
                    value += minimum
                else:
                    value += minimum * (1 << (j // 2 * LOW))
            acc = tl.dot(tl.trans(value.to(x.dtype.element_ty)), loaded[j], acc, input_precision=PRECISION)
    last = True
    if SPLITS > 1:
        mine = partial + tl.program_id(0) * (SPLITS * LANES * ROWS) + (n % LANES)[:, None] * ROWS + m[None, :]
        tl.store(mine + split * (LANES * ROWS), acc)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == SPLITS - 1
        if last:
            acc = tl.zeros((LANES, ROWS), tl.float32)
            for other in tl.static_range(SPLITS):
                acc += tl.load(mine + other * (LANES * ROWS), cache_modifier=".cg")
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
    def make(blocks: Iterable[DeviceBlocks], rows: int, dtype: torch.dtype, device: torch.device) -> RowSums | None:
        """For the largest of these with so many rows; ``None``: no product with them is split."""
        width = width_for(rows)
        taken = [one for one in blocks if takes(one, rows, dtype)]
        programs = [(triton.cdiv(one.outputs, OUTPUTS), tile_for(one).splits) for one in taken]
        split = [(count, splits) for count, splits in programs if splits > 1]
        if not split:
            return None
        partial = torch.empty(max(count * splits * OUTPUTS * width for count, splits in split), device=device)
        return RowSums(partial, torch.zeros(max(count for count, _ in split), dtype=torch.int32, device=device))


def takes(blocks: DeviceBlocks, rows: int, dtype: torch.dtype) -> bool:
    """Whether so many rows meet these blocks as they are; numbers of 6 bits lie across words, and float16 has not the
    range for numbers that are not moved to their place."""
    return 1 < rows <= MOST_ROWS and FORMS[blocks.format].low != 6 and dtype is not torch.float16


def width_for(rows: int) -> int:
    """The rows that a kernel is made for, of which some may be nothing."""
    return max(FEWEST_ROWS, triton.next_power_of_2(rows))


def tile_for(blocks: DeviceBlocks) -> RowsTile:
    """By the matrix alone."""
    words, programs = 32, triton.cdiv(blocks.outputs, OUTPUTS)
    tiles = triton.cdiv(blocks.inputs * FORMS[blocks.format].low // 32, words)
    return RowsTile(words, 4, max(1, min(8, tiles // 2, PROGRAMS // programs)))


def arranged(x: Tensor, format: Format) -> Tensor:
    """x (rows, K) as (inputs of a word, words, rows): the first input of every word, the second, and so on, each over
    what its place in the word makes of a number."""
    form, (rows, inputs) = FORMS[format], x.shape
    each = 32 // form.low
    # rows that are none meet nobody; but an interpreter of kernels minds what is no number
    out = (x.new_empty if x.is_cuda else x.new_zeros)((each, inputs // each, width_for(rows)))
    taken = x.view(rows, -1, each).permute(2, 1, 0)
    if form.high or form.table is not None:
        out[:, :, :rows] = taken
    else:
        torch.mul(taken, _over_places(form.low, x.dtype, x.device), out=out[:, :, :rows])
    return out


@lru_cache
def _over_places(low: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One over the number that stands for 1 in each place of a word, (inputs of a word, 1, 1)."""
    with torch.inference_mode(False):
        places = [2.0 ** -(i // 2 * low) for i in range(32 // low)]
        return torch.tensor(places, dtype=dtype, device=device)[:, None, None]


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
    programs, row = triton.cdiv(blocks.outputs, OUTPUTS), arranged(x, blocks.format)
    splits, held = (1, (out, out)) if sums is None else (tile.splits, sums)
    kernel: Launch = product
    kernel[(programs, splits)](
        row, *blocks.views, out if bias is None else bias, out, *held, blocks.inputs, blocks.outputs, blocks.groups,
        len(x), out.stride(0), BIAS=bias is not None, ADD=add, **blocks.constants, TILE=tile.words, SPLITS=splits,
        ROWS=row.shape[2], LANES=OUTPUTS,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", ASM=out.is_cuda and torch.version.hip is None,
        num_warps=tile.warps,
    )  # fmt: skip
