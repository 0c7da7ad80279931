"""One tile of the backward pass over rows and documents for Hopper (gpu/hopper_rows_backward.py), in Gluon.

A group starts the scores of the next tile before it hands over the queries' gradient of this one, and the values'
gradient before it needs the weights' gradient, so that the tensor cores have work while it computes.
"""

from __future__ import annotations

from typing import Any

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core as gl_core
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from vantage.kernels.gpu.hopper import SLOPE, TABLE

NEVER = gl.constexpr(1 << 30)  # more tiles than a program meets


@gl_core.builtin
def _add_to_global(tensor_desc: Any, coord: Any, src: Any, _semantic: Any = None) -> None:
    """A tile of shared memory, added to one in global memory by the copy engine. Gluon 3.6 has no function for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def _tanh(x):
    """The special function unit's."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def tile(
    part: gl.constexpr, n, j, more, s, lse, dk, dv, q, grad, k_held, v_held, ds_shared, dq_shared, lines, of_tiles,
    dq_tiles, place, scale, cap, by_key, TABLE_LINE, near, window, S_LAYOUT: gl.constexpr, A_LAYOUT: gl.constexpr,
    D: gl.constexpr, FORM: gl.constexpr, SOFTCAP: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """The n-th tile that this program meets, the j-th of its block's keys and one head. ``s``: its scores; ``lse``: of
    its queries, in units of log2. Returns those of the next tile, which is there if ``more``. ``by_key``: what a slope
    gives keys; ``near``: tiles in which a table is looked up."""
    _, grad_ready, _, ds_ready = of_tiles
    stages: gl.constexpr = q.shape[0]
    ROWS: gl.constexpr = q.shape[1]
    stage = n % stages
    # both are 0; were that known, descriptions of every product would be kept in registers, and spilled
    k = k_held.index(n // NEVER)
    v = v_held.index(n // NEVER)
    empty = gl.zeros([ROWS, ROWS], gl.float32, S_LAYOUT)
    mbarrier.wait(grad_ready.index(stage), n // stages & 1)
    keys: gl.constexpr = part * ROWS
    turned = grad.index(stage).permute((1, 0))
    dp = warpgroup_mma(v.slice(keys, ROWS), turned, empty, use_acc=False, is_async=True)
    key = keys + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    query = j * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, S_LAYOUT))
    s = s * scale
    bent = s
    if SOFTCAP:
        bent = _tanh(s)
        s = bent * cap
    if FORM == SLOPE:
        s = s + by_key[:, None]
    elif FORM == TABLE:  # noqa: SIM102 (known when it is compiled, unlike the next)
        if j < near:
            s = s + gl.load(TABLE_LINE + query[None, :] - key[:, None])
    p = gl.exp2(s - lse[None, :])
    if j < 2:  # the diagonal
        p = gl.where(key[:, None] <= query[None, :], p, 0.0)
    if WINDOW:  # noqa: SIM102 (as above)
        if (j + 1) * ROWS > window:
            p = gl.where(query[None, :] - key[:, None] < window, p, 0.0)
    weights = gl.convert_layout(p.to(q.dtype), A_LAYOUT)
    dv = warpgroup_mma(weights, grad.index(stage), dv, is_async=True)
    if SOFTCAP:
        p = p * (1.0 - bent * bent)
    delta = lines.index(stage).slice(ROWS, ROWS).load(gl.SliceLayout(0, S_LAYOUT))
    dp = warpgroup_mma_wait(1, deps=[dp])
    ds = (p * (dp - delta[None, :])).to(q.dtype)
    of_keys = gl.convert_layout(ds, A_LAYOUT)
    dk = warpgroup_mma(of_keys, q.index(stage), dk, is_async=True)
    exchanged = ds_shared.index(n % 2)
    exchanged.slice(keys, ROWS).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_ready.index(n % 2), count=1)
    mbarrier.wait(ds_ready.index(n % 2), n // 2 & 1)
    dq = _query_gradient(part, exchanged, k, D)
    dv, weights = warpgroup_mma_wait(2, deps=[dv, weights])
    s = _next_scores(part, n, more, q, k, of_tiles, S_LAYOUT)
    dk, of_keys = warpgroup_mma_wait(2, deps=[dk, of_keys])
    s, lse = _hand_over(part, n, s, dq, lines, dq_shared, of_tiles, dq_tiles, place + j, S_LAYOUT, stages, D)
    return s, lse, dk, dv


@gluon.jit
def hidden_tile(
    part: gl.constexpr, n, more, q, k_held, ds_shared, dq_shared, lines, of_tiles, dq_tiles, place,
    S_LAYOUT: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """A block's first tile for the group whose keys all lie behind its queries: only its half of the columns of the
    queries' gradient is left to do, from the other group's keys."""
    _, _, _, ds_ready = of_tiles
    stages: gl.constexpr = q.shape[0]
    ROWS: gl.constexpr = q.shape[1]
    k = k_held.index(n // NEVER)
    exchanged = ds_shared.index(n % 2)
    exchanged.slice(part * ROWS, ROWS).store(gl.zeros([ROWS, ROWS], q.dtype, S_LAYOUT))  # the other group reads them
    fence_async_shared()
    mbarrier.arrive(ds_ready.index(n % 2), count=1)
    mbarrier.wait(ds_ready.index(n % 2), n // 2 & 1)
    dq = _query_gradient(part, exchanged.slice(0, ROWS), k.slice(0, ROWS), D)
    s = _next_scores(part, n, more, q, k, of_tiles, S_LAYOUT)
    return _hand_over(part, n, s, dq, lines, dq_shared, of_tiles, dq_tiles, place, S_LAYOUT, stages, D)


@gluon.jit
def _query_gradient(part: gl.constexpr, ds, k, D: gl.constexpr):
    """Half of its columns, on its way."""
    HALF: gl.constexpr = D // 2
    ROWS: gl.constexpr = ds.shape[1]
    empty = gl.zeros([ROWS, HALF], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16]))
    columns = k.slice(part * HALF, HALF, dim=1)
    return warpgroup_mma(ds.permute((1, 0)), columns, empty, use_acc=False, is_async=True)


@gluon.jit
def _next_scores(part: gl.constexpr, n, more, q, k, of_tiles, S_LAYOUT: gl.constexpr):
    """Of the tile after the n-th, on their way. After the last: of a tile that is not there, and nobody reads them."""
    stages: gl.constexpr = q.shape[0]
    ROWS: gl.constexpr = q.shape[1]
    following = (n + 1) % stages
    mbarrier.wait(of_tiles[0].index(following), (n + 1) // stages & 1, pred=more)
    empty = gl.zeros([ROWS, ROWS], gl.float32, S_LAYOUT)
    turned = q.index(following).permute((1, 0))
    return warpgroup_mma(k.slice(part * ROWS, ROWS), turned, empty, use_acc=False, is_async=True)


@gluon.jit
def _hand_over(
    part: gl.constexpr, n, s, dq, lines, dq_shared, of_tiles, dq_tiles, place, S_LAYOUT: gl.constexpr,
    stages: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """The tile's place becomes free, and the queries' gradient goes to its sum; the next tile's scores arrive."""
    ROWS: gl.constexpr = dq_shared.shape[1]
    mbarrier.arrive(of_tiles[2].index(n % stages), count=1)
    lse = lines.index((n + 1) % stages).slice(0, ROWS).load(gl.SliceLayout(0, S_LAYOUT))
    tma.store_wait(0)
    dq = warpgroup_mma_wait(1, deps=[dq])
    dq_shared.index(part).store(dq)
    fence_async_shared()
    _add_to_global(dq_tiles, [place * ROWS, part * (D // 2)], dq_shared.index(part))
    return warpgroup_mma_wait(0, deps=[s]), lse
