"""From tiles of queries and distances to tiles of queries and keys, and back.

Query a and key b of a tile stand at the distance D + a - b. Distances come in blocks of falling ones, the first of the
``near`` block being D and that of the ``far`` block D + BLOCK. So row a needs the columns of both blocks turned by a:
one tile holds what is needed of both, and one rotation of its rows brings it into place.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.row_rotation import VALUES, on_one_diagonal, registers, to_distances, to_keys

TO_KEYS = tl.constexpr(to_keys(wide=False))
TO_KEYS_WIDE = tl.constexpr(to_keys(wide=True))
TO_DISTANCES = tl.constexpr(to_distances(whole=False))
TO_ONE_BLOCK = tl.constexpr(to_distances(whole=True))
DIAGONAL = tl.constexpr(on_one_diagonal())
ONE_OF_ONE = tl.constexpr(registers(1, 1))
ONE_OF_TWO = tl.constexpr(registers(1, 2))
ONE_OF_THREE = tl.constexpr(registers(1, 3))
TWO_OF_ONE = tl.constexpr(registers(2, 1))
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
    if SHUFFLED and ROWS > BLOCK:
        return tl.inline_asm_elementwise(
            TO_KEYS_WIDE, ONE_OF_THREE, [near, far, farther], dtype=tl.float32, is_pure=True, pack=EACH
        )
    elif SHUFFLED:
        return tl.inline_asm_elementwise(TO_KEYS, ONE_OF_TWO, [near, far], dtype=tl.float32, is_pure=True, pack=EACH)
    else:
        a = tl.arange(0, ROWS)[:, None]
        c = tl.arange(0, BLOCK)[None, :]
        if ROWS > BLOCK:
            near, far = tl.where(a >= BLOCK, far, near), tl.where(a >= BLOCK, farther, far)
        return tl.gather(tl.where(a % BLOCK + c >= BLOCK, far, near), (c - a) & (BLOCK - 1), 1)


@triton.jit
def by_distance(x, BLOCK: tl.constexpr, SHUFFLED: tl.constexpr):
    """The way back: what belongs to the near block and what belongs to the far one, 0 elsewhere."""
    if SHUFFLED:
        near, far = tl.inline_asm_elementwise(
            TO_DISTANCES, TWO_OF_ONE, [x], dtype=(tl.float32, tl.float32), is_pure=True, pack=EACH
        )
    else:
        a = tl.arange(0, BLOCK)[:, None]
        c = tl.arange(0, BLOCK)[None, :]
        turned = tl.gather(x, (c + a) & (BLOCK - 1), 1)
        near = tl.where(a + c >= BLOCK, 0.0, turned)
        far = tl.where(a + c >= BLOCK, turned, 0.0)
    return near, far


@triton.jit
def by_one_distance_block(x, BLOCK: tl.constexpr, SHUFFLED: tl.constexpr):
    """The way back of a tile ``on_diagonal``."""
    if SHUFFLED:
        return tl.inline_asm_elementwise(TO_ONE_BLOCK, ONE_OF_ONE, [x], dtype=tl.float32, is_pure=True, pack=EACH)
    else:
        return tl.gather(x, (tl.arange(0, BLOCK)[None, :] + tl.arange(0, BLOCK)[:, None]) & (BLOCK - 1), 1)


@triton.jit
def on_diagonal(here, later, BLOCK: tl.constexpr, SHUFFLED: tl.constexpr):
    """Of two tiles of keys, one behind the other, what stands at the distances of one block."""
    if SHUFFLED:
        return tl.inline_asm_elementwise(DIAGONAL, ONE_OF_TWO, [here, later], dtype=tl.float32, is_pure=True, pack=EACH)
    else:
        return tl.where(tl.arange(0, BLOCK)[None, :] >= tl.arange(0, BLOCK)[:, None], here, later)
