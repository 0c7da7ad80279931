"""Running sums of gates in attention over a cache that stays where it is (FoX): the bias of a score is the sum at the
query less the sum at the key, where ln σ of every token's gate is summed up along its row.

The sums are kept beside keys and values in float32, (G, places, H / G). A step makes the new token's own; the tokens of
a chunk are summed up before they attend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.far import LOG2E
from vantage.kernels.gpu.row_shares import blocks_of
from vantage.kernels.gpu.score_bias import DeviceBias
from vantage.kernels.gpu.tiles import QUERY_AND_KEY
from vantage.spec.parts import Shape

if TYPE_CHECKING:
    from vantage.kernels.gpu.chunk_place import ChunkPlace

Launch = Any  # triton's kernels: indexed by their grid, then called
STREAM = 3  # numbers that say where a layer's sums are: see ``stream_numbers``
SUMMED = 256  # tokens that a program sums up at once


def stream_numbers(stream: Tensor | None = None) -> list[int]:
    """Where they are: the address, and the strides of rows (0 in a pool) and heads."""
    if stream is None:
        return [0] * STREAM
    return [stream.data_ptr(), stream.stride(0) if stream.dim() == 4 else 0, stream.stride(-3)]


def gate_bias(gates: Tensor, numbers: Tensor) -> DeviceBias:
    """``gates`` (rows, H): what the new tokens' gates are made of; ``numbers``: ``stream_numbers`` of the layer."""
    return DeviceBias(QUERY_AND_KEY.value, gates, numbers)


@triton.jit
def log_sigmoid(x):
    """ln σ(x), by a logarithm of 1 + y that keeps the digits of a small y."""
    y = tl.exp(-tl.abs(x))
    u = 1.0 + y
    log = tl.where(u == 1.0, y, tl.log(u) * (y / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.minimum(x, 0.0) - log


@triton.jit
def kept_sums(numbers, b, g, GROUP: tl.constexpr):
    """Where the sums of a row's group of heads begin."""
    begin = b * tl.load(numbers + 1) + g * tl.load(numbers + 2)
    sums = tl.load(numbers).to(tl.pointer_type(tl.float32)) + begin
    if GROUP % 4 == 0:  # those of a token are 16 bytes or more, and read at once
        sums = tl.multiple_of(sums, 16)
    return sums


@triton.jit
def sum_before(sums, blocks, gone, n, block, r, mine, PAGED: tl.constexpr, GROUP: tl.constexpr):
    """The sums of heads r at the newest of n tokens; 0 if there is none, or its block was given back: then nothing
    that is seen compares with it. ``gone``: where it stands how many blocks the row has given back."""
    last = tl.maximum(n - 1, 0)
    kept = n > 0
    slot = last.to(tl.int64)
    if PAGED:
        kept = kept & (last // block >= tl.load(gone))
        slot = tl.load(blocks + last // block, mask=kept, other=0).to(tl.int64) * block + last % block
    return tl.load(sums + slot * GROUP + r, mask=mine & kept, other=0.0)


@triton.jit
def with_sums(s, now, sums, slot, r, seen, GROUP: tl.constexpr):
    """Scores in units of log2 with their bias. ``now``: the sums at the queries; slot and r broadcast against s."""
    return s + (now - tl.load(sums + slot * GROUP + r, mask=seen, other=0.0)) * LOG2E


@triton.jit
def with_group_sums(s, now, origin, sums, slot, head, seen, PRECISION: tl.constexpr, GROUP: tl.constexpr):
    """The same where a row is one of a group's heads (``head``, (rows, 1)) of one of several tokens: the group's sums
    are read once, and a product of matrices gives them to the rows. ``now`` (rows, 1) and what is multiplied are less
    ``origin`` (heads, 1), the sums at a query nearby: the matrix units round in proportion to what they are given, and
    that is large only far away. ``slot`` and ``seen``: (1, keys)."""
    r = tl.arange(0, origin.shape[0])
    kept = tl.load(sums + slot * GROUP + r[:, None], mask=seen & (r < GROUP)[:, None], other=0.0)
    take = tl.where(head == r[None, :], -1.0, 0.0)
    rounded: tl.constexpr = "ieee" if PRECISION == "ieee" else "tf32x3"
    return tl.dot(take, (kept - origin) * LOG2E, s + now * LOG2E, input_precision=rounded)


@triton.jit(do_not_specialize=["tokens", "table_width"])
def keep(
    gates, numbers, held, count, gone, table, tokens, table_width, H: tl.constexpr, GROUP: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of the tokens of a row's chunk, from gates (B · T, H), of one head. ``tokens``: T."""
    h, b = tl.program_id(0), tl.program_id(1)
    new, n = tl.load(count + b), tl.load(held + b)
    if new <= 0:
        return
    sums = kept_sums(numbers, b, h // GROUP, GROUP) + h % GROUP
    blocks = blocks_of(table, gone, b, table_width, BLOCK > 0)
    total = sum_before(sums, blocks, gone + b, n, BLOCK, 0, n >= 0, BLOCK > 0, GROUP)
    for first in range(0, new, TILE):
        i = first + tl.arange(0, TILE)
        gate = tl.load(gates + (b * tokens + i).to(tl.int64) * H + h, mask=i < new, other=0.0).to(tl.float32)
        part = tl.where(i < new, log_sigmoid(gate), 0.0)
        j = n + i
        slot = j.to(tl.int64)
        if BLOCK:
            slot = tl.load(blocks + j // BLOCK, mask=i < new, other=0).to(tl.int64) * BLOCK + j % BLOCK
        tl.store(sums + slot * GROUP, total + tl.cumsum(part, 0), mask=i < new)
        total += tl.sum(part, 0)


def keep_chunk(bias: DeviceBias, at: ChunkPlace, tokens: int, heads: int, kv_heads: int) -> None:
    """Sum up the gates of so many new tokens of each row, after those that it holds."""
    kernel: Launch = keep
    kernel[(heads, len(at.held))](
        bias.one, bias.two, at.held, at.count, at.gone, at.table, tokens, at.table.shape[1], H=heads,
        GROUP=heads // kv_heads, TILE=SUMMED, BLOCK=at.block, num_warps=4,
    )  # fmt: skip


def takes_stream(width: int, dtype: torch.dtype, shape: Shape) -> bool:
    """Whether the kernels read a stream of such numbers."""
    return dtype is torch.float32 and width == shape.heads // shape.kv_heads
