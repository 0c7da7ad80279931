"""From tiles of queries and distances to tiles of queries and keys, and back.

Query a and key b of a tile stand at the distance D + a - b. Distances come in blocks of falling ones, the first of the
``near`` block being D and that of the ``far`` block D + BLOCK. So row a needs the columns of both blocks turned by a:
one tile holds what is needed of both, and one rotation of its rows brings it into place.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.row_rotation import CONSTRAINTS, TO_LEFT, TO_RIGHT, VALUES

LEFT = tl.constexpr(TO_LEFT)
RIGHT = tl.constexpr(TO_RIGHT)
REGISTERS = tl.constexpr(CONSTRAINTS)
EACH = tl.constexpr(VALUES)


@triton.jit
def product_with_distances(q, r_tiles, C, t, W, PRECISION: tl.constexpr, BLOCK: tl.constexpr, HAS_C: tl.constexpr):
    """Queries times a block of distances, and what each distance gets beside that (C, a number for each of W)."""
    x = tl.dot(q, r_tiles.load([t, 0]).T, input_precision=PRECISION)
    if HAS_C:
        at = t + tl.arange(0, BLOCK)
        x = x + tl.load(C + at, mask=(at >= 0) & (at < W), other=0.0)[None, :]
    return x


@triton.jit
def by_key(near, far, farther, ROWS: tl.constexpr, BLOCK: tl.constexpr, SHUFFLED: tl.constexpr):
    """(queries, distances) of two blocks as (queries, keys); twice as many queries as keys need a third block.
    ``SHUFFLED``: tiles lie as row_rotation.py says."""
    a = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    if ROWS > BLOCK:
        near, far = tl.where(a >= BLOCK, far, near), tl.where(a >= BLOCK, farther, far)
    band = tl.where(a % BLOCK + c >= BLOCK, far, near)
    if SHUFFLED:
        return tl.inline_asm_elementwise(RIGHT, REGISTERS, [band], dtype=tl.float32, is_pure=True, pack=EACH)
    else:
        return tl.gather(band, (c - a) & (BLOCK - 1), 1)


@triton.jit
def by_distance(x, BLOCK: tl.constexpr, SHUFFLED: tl.constexpr):
    """The way back: column c of row a belongs to the far block where a + c reaches BLOCK, else to the near one."""
    a = tl.arange(0, BLOCK)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    if SHUFFLED:
        return tl.inline_asm_elementwise(LEFT, REGISTERS, [x], dtype=tl.float32, is_pure=True, pack=EACH)
    else:
        return tl.gather(x, (c + a) & (BLOCK - 1), 1)
