"""How programs share the keys that a row holds, and where these are."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ask(pointer):
    """Bring what is there nearer, without waiting for it."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointer.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def blocks_of(table, gone, b, table_width, PAGED: tl.constexpr):
    """The blocks of a row, from the first token that it ever had."""
    missing = 0
    if PAGED:
        missing = tl.load(gone + b)
    return table + b.to(tl.int64) * table_width - missing


@triton.jit
def slots_of(blocks, j, valid, block, PAGED: tl.constexpr):
    """Where the tokens j of a row are kept."""
    slot = j.to(tl.int64)
    if PAGED:
        slot = tl.load(blocks + j // block, mask=valid, other=0).to(tl.int64) * block + j % block
    return slot


@triton.jit
def shares_of(n, window, WINDOW: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr, LEAST: tl.constexpr):
    """The first of n tokens that are held that is seen, the tokens of a share, and how many shares there are, at least
    one."""
    first = 0
    if WINDOW:
        first = tl.maximum(0, n + 1 - window)
    count = n - first
    share = tl.maximum(tl.cdiv(tl.cdiv(count, SPLITS), KEYS) * KEYS, LEAST)
    return first, share, tl.maximum(1, tl.cdiv(count, share))
