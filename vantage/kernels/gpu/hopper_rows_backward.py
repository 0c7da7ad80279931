"""Rows and documents that look back at themselves: a backward pass for Hopper (compute capability 9.0), in Gluon.

A program stays on each multiprocessor and takes the next block of 128 keys from a counter, those with the most queries
first. For a block it goes over its document's queries, 64 at a time. The roles are those of FlashAttention 3 (Shah et
al. 2024): one warp copies, two groups of four warps have 64 keys each, whose gradients stay in registers. The scores'
gradient goes through shared memory, and each group makes half of the columns of the queries' gradient from it, which
the copy engine adds to a float32 sum in memory: these additions have no order, so that the last bits of the queries'
gradient may differ from run to run, as they do in cuDNN's.

A bias costs little here. What a slope takes of a query is added to its log-sum-exp by the warp that copies, and what it
gives a key is one number for each row of a tile; both are measured from the block's first key, so that neither is
large where a weight is. A table is looked up near the diagonal, and is one number for each head elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
)

from vantage.kernels.alignment import side_by_side
from vantage.kernels.documents import is_side_by_side
from vantage.kernels.gpu.causal_operators import NUMBERS
from vantage.kernels.gpu.causal_rows import table_lines
from vantage.kernels.gpu.document_rows import finish, prepare
from vantage.kernels.gpu.hopper import LOG2E, ROWS, SLOPE, TABLE
from vantage.kernels.gpu.hopper_row_tiles import hidden_tile, tile
from vantage.kernels.gpu.hopper_rows import BLOCK, NO_BIAS, RowBias, processors
from vantage.kernels.gpu.operators import Launch, on
from vantage.spec.rounding import ceil_div

CONCURRENT_HEADS = 4  # of keys, whose blocks are worked on at once; with 16 a fifth slower, with 2 and 8 a little
STAGES = 2  # tiles of queries on their way; three were slower


@gluon.jit
def _block(BLOCKS, item, blocks, together):
    """Head of the keys, first token, tokens from there to the document's end, tiles of them, and the first one's number
    among all tiles of a head."""
    within = item % (blocks * together)
    at = BLOCKS + 4 + within // together * 4
    g = item // (blocks * together) * together + within % together
    return g, gl.load(at), gl.load(at + 1), gl.load(at + 2), gl.load(at + 3)


@gluon.jit
def _next_tile(h, j, tiles, GROUP: gl.constexpr):
    """Head and number of the next tile: the tiles of one query head, then of the next that shares the keys."""
    j += 1
    if GROUP > 1:
        wraps = (j == tiles).to(gl.int32)
        h += wraps
        j -= wraps * tiles
    return h, j


@gluon.jit
def _with_query_bias(
    of_rows, NUMBERS, POS, h, j, first, left, width, ROWS: gl.constexpr, FORM: gl.constexpr, GATHERED: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Log-sum-exps of a tile's queries (the first half) less what the bias takes of all of their keys."""
    i = gl.arange(0, 2 * ROWS, LAYOUT)
    if FORM == SLOPE:
        after = j * ROWS + i
        if GATHERED:
            after = gl.load(POS + first + after, mask=(i < ROWS) & (after < left), other=0) - gl.load(POS + first)
        slope = gl.load(NUMBERS + h) * LOG2E
        of_rows += gl.where(i < ROWS, slope * after.to(gl.float32), 0.0)
    elif FORM == TABLE:
        far = gl.load(NUMBERS + h * width + width - 1) * LOG2E
        of_rows -= gl.where(i < ROWS, far, 0.0)
    return of_rows


@gluon.jit
def _copy(
    q_tiles, grad_tiles, k_tiles, v_tiles, q, grad, k, v, lines, following, of_blocks, of_tiles, BLOCKS, LINES, NUMBERS,
    POS, COUNTER, together, heads, places, width, D: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr,
    GATHERED: gl.constexpr,
):  # fmt: skip
    """The warp that copies, and that says which block is next."""
    next_ready, next_free, k_ready, v_ready, keys_free = of_blocks
    q_ready, grad_ready, tile_free, _ = of_tiles
    stages: gl.constexpr = q.shape[0]
    ROWS: gl.constexpr = q.shape[1]
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    FOUR: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    blocks = gl.load(BLOCKS)
    item = gl.program_id(0)
    i = 0  # blocks before this one
    n = 0  # tiles before its first
    while item < blocks * heads:
        ahead = gl.atomic_add(COUNTER, 1) + gl.num_programs(0)
        g, first, left, tiles, place = _block(BLOCKS, item, blocks, together)
        mbarrier.wait(next_free, (i & 1) ^ 1)
        following.store(gl.full([1], ahead, gl.int32, ONE))
        mbarrier.arrive(next_ready, count=1)
        h = g * GROUP
        j = 0
        for t in range(tiles * GROUP):
            stage = (n + t) % stages
            of_rows = gl.load(LINES + (h * places + place + j).to(gl.int64) * 2 * ROWS + gl.arange(0, 2 * ROWS, FOUR))
            of_rows = _with_query_bias(of_rows, NUMBERS, POS, h, j, first, left, width, ROWS, FORM, GATHERED, FOUR)
            mbarrier.wait(tile_free.index(stage), ((n + t) // stages & 1) ^ 1)
            token = first + j * ROWS
            mbarrier.expect(q_ready.index(stage), q_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(q_tiles, [token, h * D], q_ready.index(stage), q.index(stage))
            if t == 0:
                mbarrier.wait(keys_free, (i & 1) ^ 1)
                mbarrier.expect(k_ready, k_tiles.block_type.nbytes)
                tma.async_copy_global_to_shared(k_tiles, [first, g * D], k_ready, k.index(0))
                mbarrier.expect(v_ready, v_tiles.block_type.nbytes)
                tma.async_copy_global_to_shared(v_tiles, [first, g * D], v_ready, v.index(0))
            mbarrier.expect(grad_ready.index(stage), grad_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(grad_tiles, [token, h * D], grad_ready.index(stage), grad.index(stage))
            lines.index(stage).store(of_rows)
            mbarrier.arrive(q_ready.index(stage), count=1)
            h, j = _next_tile(h, j, tiles, GROUP)
        n += tiles * GROUP
        i += 1
        item = ahead


@gluon.jit
def _store(OUT, x, room, row, column, stride, inside):
    """A gradient of keys or values, through shared memory, so that a warp writes whole rows."""
    room.store(x)
    x = room.load(row.type.layout.parent)
    gl.store(OUT + row.to(gl.int64)[:, None] * stride + column[None, :], x, mask=inside[:, None])


@gluon.jit
def _attend_back(
    part: gl.constexpr, q, grad, k, v, ds, dq, lines, following, of_blocks, of_tiles, BLOCKS, dq_tiles, NUMBERS, POS,
    TABLE_LINES, DK, DV, dkt, dvt, together, heads, places, length, near, window, scale, cap, weight, D: gl.constexpr,
    GROUP: gl.constexpr, H: gl.constexpr, FORM: gl.constexpr, GATHERED: gl.constexpr, SOFTCAP: gl.constexpr,
    WINDOW: gl.constexpr,
):  # fmt: skip
    """One group of warps: half of each block's keys, over all queries that see them."""
    next_ready, next_free, k_ready, v_ready, keys_free = of_blocks
    q_ready = of_tiles[0]
    stages: gl.constexpr = q.shape[0]
    ROWS: gl.constexpr = q.shape[1]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    LAST: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    ALL: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    room = dq.index(part)._reinterpret(q.dtype, [ROWS, D], gl.NVMMASharedLayout.get_default_for([ROWS, D], q.dtype))
    blocks = gl.load(BLOCKS)
    item = gl.program_id(0)
    i = 0
    n = 0
    while item < blocks * heads:
        g, first, left, tiles, place = _block(BLOCKS, item, blocks, together)
        empty = gl.zeros([ROWS, ROWS], gl.float32, S_LAYOUT)
        dk = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
        dv = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
        mbarrier.wait(k_ready, i & 1)
        h = g * GROUP
        j = 0
        slope = 0.0
        after = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))  # keys' positions behind the block's first
        if FORM == SLOPE:
            slope = gl.load(NUMBERS + h) * LOG2E
            key = part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
            if GATHERED:
                after = (gl.load(POS + first + key, mask=key < left, other=0) - gl.load(POS + first)).to(gl.float32)
            else:
                after = key.to(gl.float32)
        if part == 0:
            mbarrier.wait(q_ready.index(n % stages), n // stages & 1)
            turned = q.index(n % stages).permute((1, 0))
            s = warpgroup_mma(k.index(0).slice(0, ROWS), turned, empty, use_acc=False)
            lse = lines.index(n % stages).slice(0, ROWS).load(gl.SliceLayout(0, S_LAYOUT))
        else:
            s, lse = hidden_tile(
                part, n, tiles * GROUP > 1, q, k, ds, dq, lines, of_tiles, dq_tiles, h * places + place, S_LAYOUT, D
            )
            h, j = _next_tile(h, j, tiles, GROUP)
        mbarrier.wait(v_ready, i & 1)
        for t in range(part, tiles * GROUP):
            if FORM == SLOPE and GROUP > 1:
                slope = gl.load(NUMBERS + h) * LOG2E
            s, lse, dk, dv = tile(
                part, n + t, j, t + 1 < tiles * GROUP, s, lse, dk, dv, q, grad, k, v, ds, dq, lines, of_tiles, dq_tiles,
                h * places + place, scale, cap, slope * after, TABLE_LINES + h * length + 2 * ROWS, near, window,
                S_LAYOUT, A_LAYOUT, D, FORM, SOFTCAP, WINDOW,
            )  # fmt: skip
            h, j = _next_tile(h, j, tiles, GROUP)
        n += tiles * GROUP
        mbarrier.arrive(keys_free, count=1)
        mbarrier.wait(next_ready, i & 1)
        item = gl.sum(following.load(ALL), 0)
        mbarrier.arrive(next_free, count=1)
        i += 1
        row = part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAST))
        column = g * D + gl.arange(0, D, gl.SliceLayout(0, LAST))
        tma.store_wait(0)
        _store(DV, dv.to(q.dtype), room, first + row, column, dvt, row < left)
        _store(DK, (dk * weight).to(q.dtype), room, first + row, column, dkt, row < left)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("tokens", "together", "heads", "places", "width", "length", "near", "window"))
def attend_back(
    Q, K, V, GRAD, LINES, BLOCKS, COUNTER, SUMS, DK, DV, NUMBERS, POS, TABLE_LINES, qt, kt, vt, gt, dkt, dvt, tokens,
    together, heads, places, width, length, near, window, scale, cap, weight, H: gl.constexpr, GROUP: gl.constexpr,
    D: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, FORM: gl.constexpr, GATHERED: gl.constexpr,
    SOFTCAP: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """A program for each multiprocessor. ``BLOCKS``: of ``documents.key_blocks``; ``LINES`` and ``SUMS``: of
    ``document_rows.prepare``, with as many ``places`` for tiles in each head. ``NUMBERS``: slopes (H,) or a table
    (H, width); ``TABLE_LINES``: the table as ``causal_rows.table_lines`` has it; ``POS``: a position for each token."""
    dtype: gl.constexpr = Q.dtype.element_ty
    KEYS: gl.constexpr = 2 * ROWS
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], dtype)
    K_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, D], dtype)
    DQ_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D // 2], gl.float32)
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, ROWS], dtype)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_tiles = tma.make_tensor_descriptor(Q, [tokens, H * D], [qt, 1], [ROWS, D], Q_LAYOUT)
    grad_tiles = tma.make_tensor_descriptor(GRAD, [tokens, H * D], [gt, 1], [ROWS, D], Q_LAYOUT)
    k_tiles = tma.make_tensor_descriptor(K, [tokens, H // GROUP * D], [kt, 1], [KEYS, D], K_LAYOUT)
    v_tiles = tma.make_tensor_descriptor(V, [tokens, H // GROUP * D], [vt, 1], [KEYS, D], K_LAYOUT)
    dq_tiles = tma.make_tensor_descriptor(SUMS, [H * places * ROWS, D], [D, 1], [ROWS, D // 2], DQ_LAYOUT)
    q = gl.allocate_shared_memory(dtype, [STAGES, ROWS, D], Q_LAYOUT)
    grad = gl.allocate_shared_memory(dtype, [STAGES, ROWS, D], Q_LAYOUT)
    k = gl.allocate_shared_memory(dtype, [1, KEYS, D], K_LAYOUT)
    v = gl.allocate_shared_memory(dtype, [1, KEYS, D], K_LAYOUT)
    ds = gl.allocate_shared_memory(dtype, [2, KEYS, ROWS], DS_LAYOUT)
    dq = gl.allocate_shared_memory(gl.float32, [2, ROWS, D // 2], DQ_LAYOUT)
    lines = gl.allocate_shared_memory(gl.float32, [STAGES, 2 * ROWS], PLAIN)
    following = gl.allocate_shared_memory(gl.int32, [1], PLAIN)
    next_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    next_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    keys_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    grad_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    tile_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ds_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(next_ready, count=1)
    mbarrier.init(next_free, count=2)
    mbarrier.init(k_ready, count=1)
    mbarrier.init(v_ready, count=1)
    mbarrier.init(keys_free, count=2)
    for i in gl.static_range(2):
        mbarrier.init(ds_ready.index(i), count=2)
    for stage in gl.static_range(STAGES):
        mbarrier.init(q_ready.index(stage), count=2)  # the queries, and what belongs to them
        mbarrier.init(grad_ready.index(stage), count=1)
        mbarrier.init(tile_free.index(stage), count=2)
    of_blocks = (next_ready, next_free, k_ready, v_ready, keys_free)
    of_tiles = (q_ready, grad_ready, tile_free, ds_ready)
    gl.warp_specialize(
        [
            (_attend_back, (
                0, q, grad, k, v, ds, dq, lines, following, of_blocks, of_tiles, BLOCKS, dq_tiles, NUMBERS, POS,
                TABLE_LINES, DK, DV, dkt, dvt, together, heads, places, length, near, window, scale, cap, weight, D,
                GROUP, H, FORM, GATHERED, SOFTCAP, WINDOW,
            )),
            (_attend_back, (
                1, q, grad, k, v, ds, dq, lines, following, of_blocks, of_tiles, BLOCKS, dq_tiles, NUMBERS, POS,
                TABLE_LINES, DK, DV, dkt, dvt, together, heads, places, length, near, window, scale, cap, weight, D,
                GROUP, H, FORM, GATHERED, SOFTCAP, WINDOW,
            )),
            (_copy, (
                q_tiles, grad_tiles, k_tiles, v_tiles, q, grad, k, v, lines, following, of_blocks, of_tiles, BLOCKS,
                LINES, NUMBERS, POS, COUNTER, together, heads, places, width, D, GROUP, FORM, GATHERED,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def row_gradients(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad: Tensor, gradients: tuple[Tensor, Tensor, Tensor],
    blocks: Tensor, units: tuple[float, float], weight: float, bias: RowBias = NO_BIAS, *, softcap: bool = False,
    window: int = 0, delta: Tensor | None = None,
) -> None:  # fmt: skip
    """Gradients of q, k and v, into ``gradients``, for every token in one of ``blocks``. Heads of a token lie side by
    side in ``out`` and ``gradients``; log-sum-exps (B, H, T) lie as they like. ``units``: of ``operators.units``;
    ``weight``: what scores' gradients are multiplied by; ``window``: how many keys a query sees at most, 0 for all
    before it, as in ``blocks``; ``delta`` (B, H, T): to be filled with output times gradient,
    row by row."""
    q, k, v, grad = (x if is_side_by_side(x) else side_by_side(x) for x in (q, k, v, grad))
    B, H, T, D = q.shape
    G, rows = k.shape[1], ROWS.value
    dq, dk, dv = gradients
    most = len(blocks) - 1
    places = most * (BLOCK // rows)  # for tiles, in each head
    lines = q.new_empty(H, places, 2, rows, dtype=torch.float32)
    sums = q.new_empty(H, places * rows, D, dtype=torch.float32)
    counter = q.new_empty(1, dtype=torch.int32)
    together = next(n for n in (CONCURRENT_HEADS, 2, 1) if G % n == 0)
    scale, cap = units
    launch: Launch = prepare
    with on(q):
        table_lines, length, near = _table_lines(bias)
        launch[(H, most)](
            out, grad, lse, lines, sums, lse if delta is None else delta, blocks, counter, out.stride(2),
            grad.stride(2), *lse.stride()[:3], T, places, D=D, BLOCK=BLOCK, ROWS=rows, H=H,
            HAS_DELTA=delta is not None, num_warps=8,
        )  # fmt: skip
        launch = attend_back
        launch[(min(processors(q.device.index or 0), most * G),)](
            q, k, v, grad, lines, blocks, counter, sums, dk, dv, lines if bias.numbers is None else bias.numbers,
            blocks if bias.positions is None else bias.positions, lines if table_lines is None else table_lines,
            q.stride(2), k.stride(2), v.stride(2), grad.stride(2), dk.stride(2), dv.stride(2), B * T, together, G,
            places, bias.width, length, near, window, scale, cap, weight, H=H, GROUP=H // G, D=D, ROWS=rows,
            STAGES=STAGES, FORM=bias.form, GATHERED=bias.positions is not None, SOFTCAP=softcap, WINDOW=window > 0,
            num_warps=4,
        )  # fmt: skip
        launch = finish
        launch[(H, most)](sums, dq, blocks, dq.stride(2), places, weight, D=D, BLOCK=BLOCK, ROWS=rows, num_warps=8)


def _table_lines(bias: RowBias) -> tuple[Tensor | None, int, int]:
    """A table by distance from -BLOCK on, how long its lines are, and in how many tiles of queries it is looked up."""
    if bias.form != TABLE.value:
        return None, 0, 0
    assert bias.numbers is not None
    beyond = max(bias.low + bias.width - 1, 0)
    length = beyond + 3 * BLOCK
    lines = bias.numbers.new_empty(len(bias.numbers), length, dtype=torch.float32)
    launch: Launch = table_lines
    launch[(len(lines), ceil_div(length, NUMBERS))](
        bias.numbers, lines, bias.low, bias.width, length, BLOCK=BLOCK, NUMBERS=NUMBERS
    )
    return lines, length, ceil_div(beyond + BLOCK - 1, ROWS.value)
