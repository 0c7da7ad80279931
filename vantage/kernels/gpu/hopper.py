"""The forward pass for Hopper (compute capability 9.0), in Gluon: the roles of FlashAttention 3 (Shah et al. 2024).

One warp copies keys and values, two groups of four warps have 64 queries each. A group starts the product of the next
tile's scores and that of this tile's values before it takes the next softmax, so that the tensor cores work meanwhile.
Queries and keys stand one after another here; other places, and other GPUs, run ``forward.attend``, whose results it
has.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from vantage.kernels.gpu.tiles import LENGTHS

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
# the forms of spec/forms.py, by number
SLOPE, LOG, POWER, TABLE, QUERY_AND_KEY = (gl.constexpr(i) for i in (1, 2, 3, 4, 6))
ROWS = gl.constexpr(64)  # queries of one group of warps
BLOCK = 128  # queries and keys of a tile
STAGES = 2  # tiles of keys and of values on their way; three were slower


@gluon.jit
def _copy(q_tiles, k_tiles, v_tiles, q, k, v, q_ready, k_ready, k_free, v_ready, v_free, m0, lo, hi):
    """The warp that copies: both halves of the queries, then keys and values as places become free."""
    stages: gl.constexpr = k.shape[0]
    block: gl.constexpr = k.shape[1]
    mbarrier.expect(q_ready, 2 * q_tiles.block_type.nbytes)
    tma.async_copy_global_to_shared(q_tiles, [m0, 0], q_ready, q.index(0))
    tma.async_copy_global_to_shared(q_tiles, [m0 + ROWS, 0], q_ready, q.index(1))
    for j in range(hi - lo):
        at = j % stages
        phase = (j // stages & 1) ^ 1
        mbarrier.wait(k_free.index(at), phase)
        mbarrier.expect(k_ready.index(at), k_tiles.block_type.nbytes)
        tma.async_copy_global_to_shared(k_tiles, [(lo + j) * block, 0], k_ready.index(at), k.index(at))
        mbarrier.wait(v_free.index(at), phase)
        mbarrier.expect(v_ready.index(at), v_tiles.block_type.nbytes)
        tma.async_copy_global_to_shared(v_tiles, [(lo + j) * block, 0], v_ready.index(at), v.index(at))


@gluon.jit
def _log2(x):
    """The special function unit's, within 2^-22."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _near_bias(far, along, slope, power, FORM: gl.constexpr):
    """A logarithm or power of the distances far - along."""
    if FORM == LOG:
        x = _log2((1.0 + power * far)[:, None] - (power * along)[None, :])
    else:
        d = far[:, None] - along[None, :]
        x = gl.where(d > 0, gl.exp2(power * _log2(d)), 0.0)
    return slope * x


@gluon.jit
def _far_terms(middle, slope, power, FORM: gl.constexpr, BLOCK: gl.constexpr):
    """The same of the distances middle + along, |along| < BLOCK / 2, as a cubic in ``along``: gpu/far.py, whose
    functions Gluon cannot call. From three blocks away on within 1e-4 of log2."""
    if FORM == LOG:
        whole = 1.0 + power * middle
        u = power / whole
        uu = u * u
        more = uu * (BLOCK * BLOCK / 16 * LOG2E)
        c0 = _log2(whole) + uu * uu * (BLOCK * BLOCK * BLOCK * BLOCK / 512 * LOG2E)
        c1 = u * LOG2E
        c2 = uu * (-LOG2E / 2 - more)
        c3 = uu * u * (LOG2E / 3 + more)
    else:
        u = 1.0 / middle
        hh = u * u * (BLOCK * BLOCK / 4)
        b2 = power * (power - 1.0) / 2
        b3 = b2 * (power - 2.0) / 3
        b4 = b3 * (power - 3.0) / 4
        b5 = b4 * (power - 4.0) / 5
        raised = gl.exp2(power * _log2(middle))
        c0 = raised * (1.0 - b4 / 8 * hh * hh)
        c1 = raised * u * (power - b5 * (5 / 16) * hh * hh)
        c2 = raised * u * u * (b2 + b4 * hh)
        c3 = raised * u * u * u * (b3 + b5 * (5 / 4) * hh)
    return slope * c0, slope * c1, slope * c2, slope * c3


@gluon.jit
def _scores(
    s, terms, n, qi, m0, q0, P0, P1, at, h, S, off, banks, origin, window, chunk, scale, cap, slope, power,
    BLOCK: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, CHUNK: gl.constexpr,
    SOFTCAP: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Scores of a tile in units of log2 (a logarithm's or a power's: not multiplied by the scale yet), with softcap,
    bias less the query's shift, and mask. ``terms``: of a far tile's cubic, whose first stays with the row."""
    kj = n + gl.arange(0, BLOCK, gl.SliceLayout(0, s.type.layout))
    if SOFTCAP:
        s = gl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [s * scale], dtype=gl.float32, is_pure=True, pack=1
        )
        s = s * cap
    elif FORM > 0 and FORM != LOG and FORM != POWER:
        s = s * scale
    if (FORM == LOG or FORM == POWER) and MASKED:  # noqa: SIM109
        along = gl.arange(0, BLOCK, gl.SliceLayout(0, s.type.layout)).to(gl.float32)
        s = s + _near_bias((qi + off - n).to(gl.float32), along, slope, power, FORM)
    elif FORM == LOG or FORM == POWER:  # noqa: SIM109
        along = (BLOCK - 1) / 2 - gl.arange(0, BLOCK, gl.SliceLayout(0, s.type.layout)).to(gl.float32)
        _, c1, c2, c3 = terms
        along = along[None, :]
        s = s + along * (c1[:, None] + along * (c2[:, None] + along * c3[:, None]))
    elif FORM == SLOPE:
        s = s + (slope * (kj - q0).to(gl.float32))[None, :]
    elif FORM == QUERY_AND_KEY:
        s = s + (gl.load(P1 + at * S + kj, mask=kj < S, other=0.0) * LOG2E)[None, :]
    elif FORM == TABLE and MASKED:
        bank = gl.maximum(
            gl.minimum((m0 - n) // BLOCK + (off + 1073741824) // BLOCK - 1073741824 // BLOCK + 1, banks - 1), 0
        )
        s = s + gl.load(P1 + ((h * banks + bank) * BLOCK + qi - m0)[:, None] * BLOCK + (kj - n)[None, :])
    if MASKED:
        qo = (qi + off)[:, None]
        ko = kj[None, :]
        see = ko < S
        if CAUSAL:
            see = see & (ko <= qo)
        if WINDOW:
            see = see & (qo - ko < window) & (ko - qo < window)
        if CHUNK:
            see = see & (qo - (qo + origin) % chunk == ko - (ko + origin) % chunk)
        s = gl.where(see, s, float("-inf"))
    return s


@gluon.jit
def _weights(s, m, total, scale, more, RAW: gl.constexpr, MASKED: gl.constexpr, CUBIC: gl.constexpr):
    """Weights that are not divided yet, and the new maximum and sum; last what all earlier weights are multiplied by.
    ``RAW``: scores are not scaled yet, which costs nothing where they are taken off the maximum. ``CUBIC``: nor is
    ``more`` added to each row."""
    top = gl.max(s, 1)
    if CUBIC:
        top = top + more
    if RAW:
        top = top * scale
    top = gl.maximum(m, top)
    pivot = top
    if MASKED:  # a row that has seen nothing yet
        pivot = gl.where(top == float("-inf"), 0.0, top)
    shrink = gl.exp2(m - pivot)
    if RAW:
        s = s * scale
        more = more * scale
    if CUBIC:
        pivot = pivot - more
    p = gl.exp2(s - pivot[:, None])
    return p, top, total * shrink + gl.sum(p, 1), shrink


@gluon.jit
def _tile(
    part: gl.constexpr, turns, j, lo, acc, p, m, total, q, k, v, k_ready, k_free, v_ready, v_free, qi, m0, q0, P0, P1,
    at, h, S, off, banks, origin, window, chunk, scale, cap, slope, power, empty, P_LAYOUT: gl.constexpr,
    BLOCK: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, CHUNK: gl.constexpr,
    SOFTCAP: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Scores of tile j, while the values of the tile before are added."""
    stages: gl.constexpr = k.shape[0]
    CUBIC: gl.constexpr = (FORM == 2 or FORM == 3) and not MASKED
    TAKES_TURNS: gl.constexpr = FORM == 1 or FORM == 6 or SOFTCAP
    here = j % stages
    before = (j - 1) % stages
    mbarrier.wait(k_ready.index(here), j // stages & 1)
    if TAKES_TURNS:  # products of one group while the other takes its softmax
        mbarrier.wait(turns.index(part), (j - 1) & 1)
    s = warpgroup_mma(q, k.index(here).permute((1, 0)), empty, use_acc=False, is_async=True)
    mbarrier.wait(v_ready.index(before), (j - 1) // stages & 1)
    acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
    if TAKES_TURNS:
        mbarrier.arrive(turns.index(1 - part), count=1)
    n = (lo + j) * BLOCK
    terms = (m, m, m, m)
    if CUBIC:
        terms = _far_terms((qi + off - n).to(gl.float32) - (BLOCK - 1) / 2, slope, power, FORM, BLOCK)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_free.index(here), count=1)
    s = _scores(
        s, terms, n, qi, m0, q0, P0, P1, at, h, S, off, banks, origin, window, chunk, scale, cap, slope, power, BLOCK,
        FORM, CAUSAL, WINDOW, CHUNK, SOFTCAP, MASKED,
    )  # fmt: skip
    RAW: gl.constexpr = (FORM == 0 or FORM == 2 or FORM == 3) and not SOFTCAP
    w, m, total, shrink = _weights(s, m, total, scale, terms[0], RAW, MASKED, CUBIC)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_free.index(before), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    p = gl.convert_layout(w.to(v.dtype), P_LAYOUT)
    return acc, p, m, total


@gluon.jit
def _attend(
    part: gl.constexpr, q_shared, k, v, q_ready, k_ready, k_free, v_ready, v_free, turns, block, OUT, LSE, P0, P1,
    SINKS, b, h, at, ob, oh, ot, sb, sh, st, T, S, lo, full_lo, full_hi, hi, off, origin, width, banks, window, chunk,
    scale, cap, BLOCK: gl.constexpr, E: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    CHUNK: gl.constexpr, SOFTCAP: gl.constexpr, HAS_SINKS: gl.constexpr,
):  # fmt: skip
    """One group of warps: half of a block's queries, over all of their keys."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, E, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    stages: gl.constexpr = k.shape[0]
    m0 = block * BLOCK
    qi = m0 + part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    q0 = m0 + off
    slope = 0.0
    power = 0.0
    if FORM == SLOPE:
        slope = gl.load(P0 + h) * LOG2E
    elif FORM == LOG or FORM == POWER:  # noqa: SIM109
        slope = -gl.load(P0 + h)
        power = gl.load(P1 + h)
        if FORM == POWER:
            slope = slope * LOG2E
        if not SOFTCAP:
            slope = slope / scale
    q = q_shared.index(part)
    m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
    acc = gl.zeros([ROWS, E], gl.float32, O_LAYOUT)
    empty = gl.zeros([ROWS, BLOCK], gl.float32, S_LAYOUT)
    mbarrier.wait(q_ready, 0)
    mbarrier.wait(k_ready.index(0), 0)
    s = warpgroup_mma(q, k.index(0).permute((1, 0)), empty, use_acc=False)
    mbarrier.arrive(k_free.index(0), count=1)
    s = _scores(
        s, (m, m, m, m), lo * BLOCK, qi, m0, q0, P0, P1, at, h, S, off, banks, origin, window, chunk, scale, cap, slope,
        power, BLOCK, FORM, CAUSAL, WINDOW, CHUNK, SOFTCAP, True,
    )  # fmt: skip
    RAW: gl.constexpr = (FORM == 0 or FORM == 2 or FORM == 3) and not SOFTCAP
    w, m, total, _ = _weights(s, m, total, scale, m, RAW, True, False)
    p = gl.convert_layout(w.to(v.dtype), P_LAYOUT)
    first = gl.maximum(full_lo - lo, 1)
    last = gl.maximum(full_hi - lo, first)
    for j in range(1, gl.minimum(first, hi - lo)):
        acc, p, m, total = _tile(
            part, turns, j, lo, acc, p, m, total, q, k, v, k_ready, k_free, v_ready, v_free, qi, m0, q0, P0, P1, at, h,
            S, off, banks, origin, window, chunk, scale, cap, slope, power, empty, P_LAYOUT, BLOCK, FORM, CAUSAL,
            WINDOW, CHUNK, SOFTCAP, True,
        )  # fmt: skip
    for j in range(first, last):
        acc, p, m, total = _tile(
            part, turns, j, lo, acc, p, m, total, q, k, v, k_ready, k_free, v_ready, v_free, qi, m0, q0, P0, P1, at, h,
            S, off, banks, origin, window, chunk, scale, cap, slope, power, empty, P_LAYOUT, BLOCK, FORM, CAUSAL,
            WINDOW, CHUNK, SOFTCAP, False,
        )  # fmt: skip
    for j in range(last, hi - lo):
        acc, p, m, total = _tile(
            part, turns, j, lo, acc, p, m, total, q, k, v, k_ready, k_free, v_ready, v_free, qi, m0, q0, P0, P1, at, h,
            S, off, banks, origin, window, chunk, scale, cap, slope, power, empty, P_LAYOUT, BLOCK, FORM, CAUSAL,
            WINDOW, CHUNK, SOFTCAP, True,
        )  # fmt: skip
    end = hi - lo - 1
    mbarrier.wait(v_ready.index(end % stages), end // stages & 1)
    acc = warpgroup_mma(p, v.index(end % stages), acc)
    inside = qi < T
    if FORM == SLOPE:
        m = m - slope * (qi + off - q0).to(gl.float32)
    elif FORM == TABLE:
        m = m + gl.load(P0 + h * width + width - 1) * LOG2E
    elif FORM == QUERY_AND_KEY:
        m = m + gl.load(P0 + at * T + qi, mask=inside, other=0.0) * LOG2E
    share = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, S_LAYOUT))
    if HAS_SINKS:
        sink = gl.load(SINKS + b * sb + h * sh + qi.to(gl.int64) * st, mask=inside, other=0.0).to(gl.float32) * LOG2E
        top = gl.maximum(m, sink)
        share = gl.exp2(m - top)
        total = total * share + gl.exp2(sink - top)
        m = top
    seen = total > 0
    lse = gl.where(seen, (m + gl.log2(gl.where(seen, total, 1.0))) * LN2, float("-inf"))
    gl.store(LSE + at * T + qi, lse, mask=inside)
    share = gl.convert_layout(share / gl.where(seen, total, 1.0), gl.SliceLayout(1, O_LAYOUT))
    acc = acc * share[:, None]
    i = m0 + part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, O_LAYOUT))
    c = gl.arange(0, E, gl.SliceLayout(0, O_LAYOUT))
    to = OUT + b * ob + h.to(gl.int64) * oh + i.to(gl.int64)[:, None] * ot + c[None, :]
    gl.store(to, acc.to(OUT.dtype.element_ty), mask=(i < T)[:, None])


@gluon.jit(do_not_specialize=LENGTHS)
def attend(
    Q, K, V, OUT, LSE, P0, P1, SINKS, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, sb, sh, st, T, S, blocks,
    off, origin, width, banks, window, chunk, scale, cap, H: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr,
    E: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, CHUNK: gl.constexpr, SOFTCAP: gl.constexpr, HAS_SINKS: gl.constexpr,
):  # fmt: skip
    """One block of 128 queries of one head."""
    # a few heads at a time, whose keys then stay in the second cache; of these the longest rows first
    FEW: gl.constexpr = 4 if H % 4 == 0 else 1
    few = gl.where(S <= 8192, FEW, 1)
    within = gl.program_id(0) % (blocks * few)
    block = blocks - 1 - within // few
    at = (gl.program_id(0) // (blocks * few) * few + within % few).to(gl.int64)
    b = at // H
    h = (at % H).to(gl.int32)
    g = (h // GROUP).to(gl.int64)
    dtype: gl.constexpr = Q.dtype.element_ty
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], dtype)
    K_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK, D], dtype)
    V_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK, E], dtype)
    q_tiles = tma.make_tensor_descriptor(Q + b * qb + h.to(gl.int64) * qh, [T, D], [qt, 1], [ROWS, D], Q_LAYOUT)
    k_tiles = tma.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D], K_LAYOUT)
    v_tiles = tma.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E], V_LAYOUT)
    q = gl.allocate_shared_memory(dtype, [2, ROWS, D], Q_LAYOUT)
    k = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], K_LAYOUT)
    v = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, E], V_LAYOUT)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    mbarrier.init(turns.index(0), count=1)
    mbarrier.init(turns.index(1), count=1)
    mbarrier.arrive(turns.index(0), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(stage), count=1)
        mbarrier.init(v_ready.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_free.index(stage), count=2)
    bounds = BOUNDS + block * 4
    lo = gl.load(bounds)
    full_lo = gl.load(bounds + 1)
    full_hi = gl.load(bounds + 2)
    hi = gl.maximum(gl.load(bounds + 3), lo + 1)  # one tile at least, which may show nothing
    gl.warp_specialize(
        [
            (_attend, (
                0, q, k, v, q_ready, k_ready, k_free, v_ready, v_free, turns, block, OUT, LSE, P0, P1, SINKS, b, h, at,
                ob, oh, ot, sb, sh, st, T, S, lo, full_lo, full_hi, hi, off, origin, width, banks, window, chunk, scale,
                cap, BLOCK, E, FORM, CAUSAL, WINDOW, CHUNK, SOFTCAP, HAS_SINKS,
            )),
            (_attend, (
                1, q, k, v, q_ready, k_ready, k_free, v_ready, v_free, turns, block, OUT, LSE, P0, P1, SINKS, b, h, at,
                ob, oh, ot, sb, sh, st, T, S, lo, full_lo, full_hi, hi, off, origin, width, banks, window, chunk, scale,
                cap, BLOCK, E, FORM, CAUSAL, WINDOW, CHUNK, SOFTCAP, HAS_SINKS,
            )),
            (_copy, (
                q_tiles, k_tiles, v_tiles, q, k, v, q_ready, k_ready, k_free, v_ready, v_free, block * BLOCK, lo, hi,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
