"""What the kernels of the backward pass by distances share: rows' numbers, and where kept tiles lie."""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.tiles import LOG2E


@triton.jit
def line_and_delta(LSE, DELTA, at, qi, T):
    """What rows' scores are measured from, and output times gradient."""
    line = tl.load(LSE + at * T + qi, mask=qi < T, other=float("inf"))
    delta = tl.load(DELTA + at * T + qi, mask=qi < T, other=0.0)
    return tl.where(line == float("-inf"), float("inf"), line) * LOG2E, delta


@triton.jit
def kept_slot(block, blocks, most, n):
    """Where a block of queries keeps what its tile of keys n gives to the farther of its two blocks of distances. Later
    blocks have one tile more each, up to ``most``; a block and the one that is as far from the other end share a row of
    memory, and begin at its two ends."""
    row = tl.minimum(block, blocks - 1 - block)
    length = 2 * most - blocks + 1
    return row * length + tl.where(block >= blocks - 1 - block, n, length - 1 - n)


@triton.jit
def kept_tiles_of(KEPT, pair, blocks, most, BLOCK: tl.constexpr):
    """Those of one row and head."""
    tiles = (blocks + 1) // 2 * (2 * most - blocks + 1)
    first = KEPT + pair * tiles * (BLOCK * BLOCK)
    return tl.make_tensor_descriptor(first, [tiles * BLOCK, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
