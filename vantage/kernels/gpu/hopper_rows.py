"""Rows and documents that look back at themselves: a forward pass for Hopper (compute capability 9.0), in Gluon.

Short rows of tiles spend much of their time between two blocks of queries: a program starts, the first tiles come, the
output is written. So programs stay here, one on each multiprocessor, and take the next block from a counter. The warp
that copies is a block ahead of the two groups of warps that multiply, whose roles are those of gpu/hopper.py.

Tokens of all rows lie at one distance in memory, heads side by side: one description of each tensor is for all blocks.

Where positions are gathered, the warp that copies also looks them up: what slopes give the keys of a tile comes through
shared memory, as keys do.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from vantage.kernels.gpu.hopper import LN2, LOG2E, ROWS
from vantage.kernels.gpu.operators import Launch, on

BLOCK = 128  # queries of a block and keys of a tile
STAGES = 2  # tiles of keys and of values on their way
CONCURRENT_HEADS = 8  # heads whose blocks are worked on at once, the longest first


class RowBias(NamedTuple):
    """A bias of rows or documents that look back: its number in spec/forms.py, float32 slopes (H,) or a table of
    distances (H, width) from ``low`` on; for slopes, the position of each token of each row, int32 or float32 and never
    falling, where they do not run on."""

    form: int = 0
    numbers: Tensor | None = None
    low: int = 0
    width: int = 0
    positions: Tensor | None = None


NO_BIAS = RowBias()


@gluon.jit
def _block(BLOCKS, item, blocks, together):
    """Row, head, first token and end of the document, and number of the block in it."""
    within = item % (blocks * together)
    at = BLOCKS + within // together * 4
    h = item // (blocks * together) * together + within % together
    return gl.load(at), h, gl.load(at + 1), gl.load(at + 2), gl.load(at + 3)


@gluon.jit
def _copy(
    q_tiles, k_tiles, v_tiles, q, k, v, by_key, following, of_blocks, of_tiles, BLOCKS, SLOPES, POS, COUNTER, T, blocks,
    together, items, D: gl.constexpr, GROUP: gl.constexpr, GATHERED: gl.constexpr,
):  # fmt: skip
    """The warp that copies, and that says which block is next."""
    q_ready, q_free, next_ready, next_free = of_blocks
    k_ready, k_free, v_ready, v_free = of_tiles
    stages: gl.constexpr = k.shape[0]
    BLOCK: gl.constexpr = k.shape[1]
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    FOUR: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    item = gl.program_id(0)
    i = 0  # blocks before this one
    n = 0  # tiles before its first
    while item < items:
        ahead = gl.atomic_add(COUNTER, 1) + gl.num_programs(0)
        slot = i % 2
        mbarrier.wait(next_free.index(slot), (i // 2 & 1) ^ 1)
        following.index(slot).store(gl.full([1], ahead, gl.int32, ONE))
        mbarrier.arrive(next_ready.index(slot), count=1)
        b, h, first, end, number = _block(BLOCKS, item, blocks, together)
        begin = b * T + first
        column = h // GROUP * D
        slope = 0.0
        origin = 0
        if GATHERED:
            slope = gl.load(SLOPES + h) * LOG2E
            origin = gl.load(POS + begin + number * BLOCK)
        mbarrier.wait(q_free.index(slot), (i // 2 & 1) ^ 1)
        mbarrier.expect(q_ready.index(slot), 2 * q_tiles.block_type.nbytes)
        m0 = begin + number * BLOCK
        tma.async_copy_global_to_shared(q_tiles, [m0, h * D], q_ready.index(slot), q.index(2 * slot))
        tma.async_copy_global_to_shared(q_tiles, [m0 + ROWS, h * D], q_ready.index(slot), q.index(2 * slot + 1))
        for j in range(number + 1):
            at = (n + j) % stages
            phase = ((n + j) // stages & 1) ^ 1
            bias = gl.zeros([BLOCK], gl.float32, FOUR)
            if GATHERED:
                key = first + j * BLOCK + gl.arange(0, BLOCK, FOUR)
                pos = gl.load(POS + b * T + key, mask=key < end, other=0)
                bias = slope * (pos - origin).to(gl.float32)
            mbarrier.wait(k_free.index(at), phase)
            mbarrier.expect(k_ready.index(at), k_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(k_tiles, [begin + j * BLOCK, column], k_ready.index(at), k.index(at))
            if GATHERED:
                by_key.index(at).store(bias)
                mbarrier.arrive(k_ready.index(at), count=1)
            mbarrier.wait(v_free.index(at), phase)
            mbarrier.expect(v_ready.index(at), v_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(v_tiles, [begin + j * BLOCK, column], v_ready.index(at), v.index(at))
        n += number + 1
        i += 1
        item = ahead


@gluon.jit
def _weights(
    s, m, total, n0, qi, m0, scale, slope, by_key, SLOPE: gl.constexpr, GATHERED: gl.constexpr, MASKED: gl.constexpr
):  # fmt: skip
    """Weights that are not divided yet, from raw scores; the new maximum and sum; last what all earlier weights are
    multiplied by. A slope counts from the block's first query on: softmax does not see what a row gets alike."""
    kj = n0 + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    if GATHERED:
        s = s * scale + by_key[None, :]
    elif SLOPE:
        s = s * scale + (slope * (kj - m0).to(gl.float32))[None, :]
    if MASKED:
        s = gl.where(kj[None, :] <= qi[:, None], s, float("-inf"))
    top = gl.max(s, 1)
    if not SLOPE:
        top = top * scale
    top = gl.maximum(m, top)
    if not SLOPE:
        s = s * scale
    p = gl.exp2(s - top[:, None])  # every query sees the first key of its document: no row is without one
    shrink = gl.exp2(m - top)
    return p, top, total * shrink + gl.sum(p, 1), shrink


@gluon.jit
def _of_keys(biases, here, like, GATHERED: gl.constexpr):
    """What slopes give the keys of a tile of scores ``like`` this one; nothing where positions run on."""
    BLOCK: gl.constexpr = biases.shape[1]
    S_LAYOUT: gl.constexpr = like.type.layout
    if GATHERED:
        return biases.index(here).load(gl.SliceLayout(0, S_LAYOUT))
    else:
        return gl.zeros([BLOCK], gl.float32, gl.SliceLayout(0, S_LAYOUT))


@gluon.jit
def _tile(
    part: gl.constexpr, c, turn, n0, acc, p, m, total, q, k, v, biases, of_tiles, turns, qi, m0, scale, slope,
    empty, P_LAYOUT: gl.constexpr, SLOPE: gl.constexpr, GATHERED: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Scores of the tile c of all that this program meets, while the values of the tile before are added."""
    k_ready, k_free, v_ready, v_free = of_tiles
    stages: gl.constexpr = k.shape[0]
    here = c % stages
    before = (c - 1) % stages
    mbarrier.wait(k_ready.index(here), c // stages & 1)
    if SLOPE:  # products of one group while the other takes its softmax
        mbarrier.wait(turns.index(part), turn & 1)
    s = warpgroup_mma(q, k.index(here).permute((1, 0)), empty, use_acc=False, is_async=True)
    mbarrier.wait(v_ready.index(before), (c - 1) // stages & 1)
    acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
    if SLOPE:
        mbarrier.arrive(turns.index(1 - part), count=1)
    by_key = _of_keys(biases, here, empty, GATHERED)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_free.index(here), count=1)
    w, m, total, shrink = _weights(s, m, total, n0, qi, m0, scale, slope, by_key, SLOPE, GATHERED, MASKED)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_free.index(before), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    return acc, gl.convert_layout(w.to(v.dtype), P_LAYOUT), m, total


@gluon.jit
def _attend(
    part: gl.constexpr, q_shared, k, v, biases, following, of_blocks, of_tiles, turns, BLOCKS, OUT, LSE, SLOPES, POS,
    ob, oh, ot, lb, lh, lt, T, blocks, together, items, scale, D: gl.constexpr, SLOPE: gl.constexpr,
    GATHERED: gl.constexpr,
):  # fmt: skip
    """One group of warps: half of each block's queries, over all of their keys."""
    q_ready, q_free, next_ready, next_free = of_blocks
    k_ready, k_free, v_ready, v_free = of_tiles
    stages: gl.constexpr = k.shape[0]
    BLOCK: gl.constexpr = k.shape[1]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    FOUR: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    empty = gl.zeros([ROWS, BLOCK], gl.float32, S_LAYOUT)
    item = gl.program_id(0)
    i = 0
    n = 0
    slope = 0.0
    while item < items:
        slot = i % 2
        b, h, first, end, number = _block(BLOCKS, item, blocks, together)
        if SLOPE:
            slope = gl.load(SLOPES + h) * LOG2E
        m0 = first + number * BLOCK
        qi = m0 + part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        q = q_shared.index(2 * slot + part)
        m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
        total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
        acc = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
        mbarrier.wait(q_ready.index(slot), i // 2 & 1)
        mbarrier.wait(k_ready.index(n % stages), n // stages & 1)
        by_key = _of_keys(biases, n % stages, empty, GATHERED)
        s = warpgroup_mma(q, k.index(n % stages).permute((1, 0)), empty, use_acc=False)
        mbarrier.arrive(k_free.index(n % stages), count=1)
        w, m, total, _shrink = _weights(s, m, total, first, qi, m0, scale, slope, by_key, SLOPE, GATHERED, True)
        p = gl.convert_layout(w.to(v.dtype), P_LAYOUT)
        for j in range(1, number):
            acc, p, m, total = _tile(
                part, n + j, n - i + j - 1, first + j * BLOCK, acc, p, m, total, q, k, v, biases, of_tiles, turns, qi,
                m0, scale, slope, empty, P_LAYOUT, SLOPE, GATHERED, False,
            )  # fmt: skip
        for j in range(gl.maximum(number, 1), number + 1):  # the diagonal
            acc, p, m, total = _tile(
                part, n + j, n - i + j - 1, first + j * BLOCK, acc, p, m, total, q, k, v, biases, of_tiles, turns, qi,
                m0, scale, slope, empty, P_LAYOUT, SLOPE, GATHERED, True,
            )  # fmt: skip
        mbarrier.arrive(q_free.index(slot), count=1)
        mbarrier.wait(next_ready.index(slot), i // 2 & 1)
        item = gl.sum(following.index(slot).load(FOUR), 0)
        mbarrier.arrive(next_free.index(slot), count=1)
        n += number + 1
        i += 1
        mbarrier.wait(v_ready.index((n - 1) % stages), (n - 1) // stages & 1)
        acc = warpgroup_mma(p, v.index((n - 1) % stages), acc)
        mbarrier.arrive(v_free.index((n - 1) % stages), count=1)
        if GATHERED:
            at = POS + b * T
            m = m - slope * (gl.load(at + qi, mask=qi < end, other=0) - gl.load(at + m0)).to(gl.float32)
        elif SLOPE:
            m = m - slope * (qi - m0).to(gl.float32)
        to = b.to(gl.int64) * lb + h.to(gl.int64) * lh
        gl.store(LSE + to + qi.to(gl.int64) * lt, (m + gl.log2(total)) * LN2, mask=qi < end)
        acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, O_LAYOUT))[:, None]
        row = m0 + part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, O_LAYOUT))
        column = gl.arange(0, D, gl.SliceLayout(0, O_LAYOUT))
        to = b.to(gl.int64) * ob + h.to(gl.int64) * oh
        where = OUT + to + row.to(gl.int64)[:, None] * ot + column[None, :]
        gl.store(where, acc.to(OUT.dtype.element_ty), mask=(row < end)[:, None])


@gluon.jit(do_not_specialize=("tokens", "T", "blocks", "together", "items"))
def attend(
    Q, K, V, OUT, LSE, SLOPES, POS, BLOCKS, COUNTER, qt, kt, vt, ob, oh, ot, lb, lh, lt, tokens, T, blocks, together,
    items, scale, H: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    SLOPE: gl.constexpr, GATHERED: gl.constexpr,
):  # fmt: skip
    """A program for each multiprocessor. ``BLOCKS``: of ``documents.document_blocks``; ``POS``: of each token."""
    dtype: gl.constexpr = Q.dtype.element_ty
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], dtype)
    K_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK, D], dtype)
    q_tiles = tma.make_tensor_descriptor(Q, [tokens, H * D], [qt, 1], [ROWS, D], Q_LAYOUT)
    k_tiles = tma.make_tensor_descriptor(K, [tokens, H // GROUP * D], [kt, 1], [BLOCK, D], K_LAYOUT)
    v_tiles = tma.make_tensor_descriptor(V, [tokens, H // GROUP * D], [vt, 1], [BLOCK, D], K_LAYOUT)
    q = gl.allocate_shared_memory(dtype, [4, ROWS, D], Q_LAYOUT)  # both halves of a block, and of the next
    k = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], K_LAYOUT)
    v = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], K_LAYOUT)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    by_key = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK], PLAIN)
    following = gl.allocate_shared_memory(gl.int32, [2, 1], PLAIN)
    q_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    next_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    next_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(2):
        mbarrier.init(q_ready.index(slot), count=1)
        mbarrier.init(q_free.index(slot), count=2)
        mbarrier.init(next_ready.index(slot), count=1)
        mbarrier.init(next_free.index(slot), count=2)
        mbarrier.init(turns.index(slot), count=1)
    mbarrier.arrive(turns.index(0), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(stage), count=2 if GATHERED else 1)  # the keys, and what slopes give them
        mbarrier.init(v_ready.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_free.index(stage), count=2)
    of_blocks = (q_ready, q_free, next_ready, next_free)
    of_tiles = (k_ready, k_free, v_ready, v_free)
    gl.warp_specialize(
        [
            (_attend, (
                0, q, k, v, by_key, following, of_blocks, of_tiles, turns, BLOCKS, OUT, LSE, SLOPES, POS, ob, oh, ot,
                lb, lh, lt, T, blocks, together, items, scale, D, SLOPE, GATHERED,
            )),
            (_attend, (
                1, q, k, v, by_key, following, of_blocks, of_tiles, turns, BLOCKS, OUT, LSE, SLOPES, POS, ob, oh, ot,
                lb, lh, lt, T, blocks, together, items, scale, D, SLOPE, GATHERED,
            )),
            (_copy, (
                q_tiles, k_tiles, v_tiles, q, k, v, by_key, following, of_blocks, of_tiles, BLOCKS, SLOPES, POS,
                COUNTER, T, blocks, together, items, D, GROUP, GATHERED,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, blocks: Tensor, scale: float, bias: RowBias = NO_BIAS
) -> None:
    """Output (B, H, T, d) and log-sum-exp (B, H, T), both as they lie. Every token is in one of ``blocks``. Biases are
    slopes."""
    B, H, T, D = q.shape
    counter = torch.zeros(1, dtype=torch.int32, device=q.device)
    items = len(blocks) * H
    together = next(n for n in (CONCURRENT_HEADS, 4, 2, 1) if H % n == 0)
    kernel: Launch = attend
    with on(q):
        kernel[(min(processors(q.device.index or 0), items),)](
            q, k, v, out, lse, lse if bias.numbers is None else bias.numbers,
            blocks if bias.positions is None else bias.positions, blocks, counter, q.stride(2), k.stride(2),
            v.stride(2), *out.stride()[:3], *lse.stride()[:3], B * T, T, len(blocks), together, items,
            scale * LOG2E.value, H=H, GROUP=H // k.shape[1], D=D, BLOCK=BLOCK, STAGES=STAGES,
            SLOPE=bias.numbers is not None, GATHERED=bias.positions is not None, num_warps=4,
        )  # fmt: skip


@functools.cache
def processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
