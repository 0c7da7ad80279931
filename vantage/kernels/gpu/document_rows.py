"""Around the backward pass over rows and documents on Hopper: what belongs to each query, and its gradient."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _block(BLOCKS, number):
    """First token, tokens from there to the document's end, and the number of the block's first tile in a head."""
    at = BLOCKS + 4 + number * 4
    return tl.load(at).to(tl.int64), tl.load(at + 1), tl.load(at + 3)


@triton.jit(do_not_specialize=("T", "places"))
def prepare(
    OUT, GRAD, LSE, LINES, SUMS, DELTA, BLOCKS, COUNTER, ot, gt, lb, lh, lt, T, places, D: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr, HAS_DELTA: tl.constexpr,
):  # fmt: skip
    """``LINES``, of each tile: log-sum-exps in units of log2, and output times gradient; +inf and 0 behind the end of a
    document. ``SUMS``: zeros. ``DELTA`` (B, H, T): output times gradient once more. ``COUNTER``: 0."""
    h, number = tl.program_id(0), tl.program_id(1)  # heads lie side by side: what is read at once lies together
    if h + number == 0:
        tl.store(COUNTER, 0)
    if number < tl.load(BLOCKS):
        first, left, place = _block(BLOCKS, number)
        i, c = tl.arange(0, BLOCK), tl.arange(0, D)
        inside = i < left
        token = first + i
        column = h * D + c[None, :]
        out = tl.load(OUT + token[:, None] * ot + column, mask=inside[:, None], other=0.0).to(tl.float32)
        grad = tl.load(GRAD + token[:, None] * gt + column, mask=inside[:, None], other=0.0).to(tl.float32)
        lse = LSE + first // T * lb + h.to(tl.int64) * lh + (first % T + i) * lt
        lse = tl.load(lse, mask=inside, other=float("inf")) * LOG2E
        tile = (h * places + place).to(tl.int64)
        line = LINES + tile * 2 * ROWS + i // ROWS * 2 * ROWS + i % ROWS
        tl.store(line, lse)
        delta = tl.sum(out * grad, 1)
        tl.store(line + ROWS, delta)
        if HAS_DELTA:
            tl.store(DELTA + (first // T * H + h) * T + first % T + i, delta, mask=inside)
        tl.store(SUMS + tile * ROWS * D + i[:, None] * D + c[None, :], tl.zeros((BLOCK, D), tl.float32))


@triton.jit(do_not_specialize=("places",))
def finish(SUMS, OUT, BLOCKS, ot, places, scale, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """The queries' gradient from its sums."""
    h, number = tl.program_id(0), tl.program_id(1)
    if number < tl.load(BLOCKS):
        first, left, place = _block(BLOCKS, number)
        i, c = tl.arange(0, BLOCK), tl.arange(0, D)
        inside = (i < left)[:, None]
        tile = (h * places + place).to(tl.int64)
        x = tl.load(SUMS + tile * ROWS * D + i[:, None] * D + c[None, :], mask=inside, other=0.0) * scale
        tl.store(OUT + (first + i)[:, None] * ot + h * D + c[None, :], x.to(OUT.dtype.element_ty), mask=inside)
