"""RoPE on a GPU in one pass over queries and keys together, or over their gradients.

torch's own operators take three passes over each, and are slow ones over what a projection or an attention hands on in
strides. Here every number is read once and written once, and the tables are read once for all heads of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from vantage.spec.rounding import ceil_div, next_power_of_2

Kernel = Any  # triton's: indexed by its grid, then called
TILE = 1024  # pairs of numbers in one program
MAX_HEADS = 16  # of one program
WARPS = 2
EVICT = "evict_first"  # what is read here is not read again; what is written is


@triton.jit
def _pairs(
    x, at, column, inside, half, ROWS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, ADJACENT: tl.constexpr,
    EVICT: tl.constexpr,
):  # fmt: skip
    """The first and second members of all pairs, in float32; ``at``: where a head begins."""
    if ADJACENT:
        both = tl.load(x + at + column, mask=inside, eviction_policy=EVICT).to(tl.float32)
        a, b = tl.split(tl.reshape(both, [ROWS, HEADS, HALF, 2]))
    else:
        a = tl.load(x + at + column, mask=inside, eviction_policy=EVICT).to(tl.float32)
        b = tl.load(x + at + half + column, mask=inside, eviction_policy=EVICT).to(tl.float32)
    return a, b


@triton.jit
def _turn_heads(
    x, out, cos, sin, batch, token, first, heads, length, half, rest, xb, xh, xt, ob, oh, ot, cb, ct, sb, st,
    BACK: tl.constexpr, ADJACENT: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    REST: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Some heads of some tokens: both members of a pair are read once, and each is written with its partner's share."""
    SPAN: tl.constexpr = 2 * HALF if ADJACENT else HALF  # numbers that are loaded together
    column = tl.arange(0, SPAN)[None, None, :]
    head = (first + tl.arange(0, HEADS)[None, :, None]).to(tl.int64)
    wide = 2 * half if ADJACENT else half
    filled = (token < length) & (column < wide)
    cos_a, cos_b = _pairs(cos, batch * cb + token * ct, column, filled, half, ROWS, 1, HALF, ADJACENT, "")
    sin_a, sin_b = _pairs(sin, batch * sb + token * st, column, filled, half, ROWS, 1, HALF, ADJACENT, "")
    if BACK:
        sin_a, sin_b = sin_b, sin_a
    inside = filled & (head < heads)
    at, to = batch * xb + token * xt + head * xh, batch * ob + token * ot + head * oh
    a, b = _pairs(x, at, column, inside, half, ROWS, HEADS, HALF, ADJACENT, EVICT)
    turned_a, turned_b = a * cos_a + b * sin_a, b * cos_b + a * sin_b
    if ADJACENT:
        both = tl.reshape(tl.join(turned_a, turned_b), [ROWS, HEADS, SPAN])
        tl.store(out + to + column, both.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(out + to + column, turned_a.to(out.dtype.element_ty), mask=inside)
        tl.store(out + to + half + column, turned_b.to(out.dtype.element_ty), mask=inside)
    if REST > 0:  # what does not turn passes through
        behind = tl.arange(0, REST)[None, None, :]
        left = (token < length) & (head < heads) & (behind < rest)
        tl.store(out + to + 2 * half + behind, tl.load(x + at + 2 * half + behind, mask=left), mask=left)


@triton.jit
def turn(
    q, k, q_out, k_out, cos, sin, q_heads, k_heads, length, half, rest, blocks, q_groups, groups,
    qb, qh, qt, kb, kh, kt, qob, qoh, qot, kob, koh, kot, cb, ct, sb, st,
    BACK: tl.constexpr, ADJACENT: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    REST: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """A program has some tokens and some heads, of the queries or of the keys. Those of one token are neighbours."""
    program = tl.program_id(0)
    group, block = program % groups, program // groups
    batch = (block // blocks).to(tl.int64)
    token = ((block % blocks) * ROWS + tl.arange(0, ROWS)[:, None, None]).to(tl.int64)
    if group < q_groups:
        _turn_heads(
            q, q_out, cos, sin, batch, token, group * HEADS, q_heads, length, half, rest, qb, qh, qt, qob, qoh, qot,
            cb, ct, sb, st, BACK, ADJACENT, ROWS, HEADS, HALF, REST, EVICT,
        )  # fmt: skip
    else:
        _turn_heads(
            k, k_out, cos, sin, batch, token, (group - q_groups) * HEADS, k_heads, length, half, rest, kb, kh, kt,
            kob, koh, kot, cb, ct, sb, st, BACK, ADJACENT, ROWS, HEADS, HALF, REST, EVICT,
        )  # fmt: skip


def turned(xs: Sequence[Tensor], cos: Tensor, sin: Tensor, pairing: str, *, back: bool) -> list[Tensor]:
    """Queries (B, H, T, d) and keys (B, G, T, d), or one of them, turned by cos and sin (1 or B, 1, T, up to d);
    ``back``: gradients from those of what was turned. What lies behind the tables' width passes through."""
    xs = [x if x.stride(-1) == 1 else x.contiguous() for x in xs]
    outs = [x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in xs]
    (B, H, T, d), G = xs[0].shape, 0 if len(xs) == 1 else xs[1].shape[1]
    without_memory = isinstance(cos, FakeTensor) or isinstance(xs[0], FakeTensor)  # of `vantage inspect kernels`
    if without_memory or not any(x.numel() for x in xs):
        return outs
    half = cos.shape[-1] // 2
    rest = d - 2 * half
    wide = next_power_of_2(half)
    heads = min(MAX_HEADS, next_power_of_2(max(H, G)))
    rows = min(max(1, TILE // (wide * heads)), next_power_of_2(T))
    blocks, q_groups, k_groups = ceil_div(T, rows), ceil_div(H, heads), ceil_div(G, heads)
    tables = [stride for x in (cos, sin) for stride in (x.stride(0) if len(x) > 1 else 0, x.stride(2))]
    strides = [stride for side in (xs, outs) for x in (side[0], side[-1]) for stride in x.stride()[:3]]
    kernel: Kernel = turn
    with torch.cuda.device(cos.device) if cos.is_cuda else nullcontext():
        kernel[(B * blocks * (q_groups + k_groups),)](
            xs[0], xs[-1], outs[0], outs[-1], cos, sin, H, G, T, half, rest, blocks, q_groups, q_groups + k_groups,
            *strides, *tables, BACK=back, ADJACENT=pairing == "adjacent", ROWS=rows, HEADS=heads,
            HALF=wide, REST=next_power_of_2(rest) if rest else 0, EVICT=EVICT, num_warps=WARPS,
        )  # fmt: skip
    return outs
