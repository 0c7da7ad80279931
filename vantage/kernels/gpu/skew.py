"""From tiles of queries and distances to tiles of queries and keys, and back.

Query a and key b of a tile stand at the distance D + a - b. Distances come in blocks of falling ones, the first of the
``near`` block being D and that of the ``far`` block D + BLOCK. So row a needs the columns of both blocks turned by a:
one tile holds what is needed of both, and one rotation of its rows brings it into place.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def by_key(near, far, BLOCK: tl.constexpr):
    """(queries, distances) of two blocks as (queries, keys)."""
    a = tl.arange(0, BLOCK)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    return tl.gather(tl.where(a + c >= BLOCK, far, near), (c - a) & (BLOCK - 1), 1)


@triton.jit
def by_distance(x, BLOCK: tl.constexpr):
    """The way back: column c of row a belongs to the far block where a + c reaches BLOCK, else to the near one."""
    a = tl.arange(0, BLOCK)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    return tl.gather(x, (c + a) & (BLOCK - 1), 1)


@triton.jit
def by_key_turned(near, far, BLOCK: tl.constexpr):
    """``by_key`` for tiles that stand on their side: (distances, queries) as (keys, queries)."""
    c = tl.arange(0, BLOCK)[:, None]
    a = tl.arange(0, BLOCK)[None, :]
    return tl.gather(tl.where(a + c >= BLOCK, far, near), (c - a) & (BLOCK - 1), 0)
