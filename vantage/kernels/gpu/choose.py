"""A token for every row from its logits, as ``generation.sampling`` chooses it, without the host.

The order of the vocabulary is best first, equals by their number, and what is kept is always a front of it. So no sort
is needed: where the front ends, and where the random number falls, is found bit by bit in the logits' own bits, by
counting and summing what lies above. Sums are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports] (comes with torch for CUDA)
import triton.language as tl  # pyright: ignore[reportMissingImports] (the same)
from torch import Tensor

Launch = Any  # triton's kernels: indexed by their grid, then called
CHUNK = 4096  # logits of one program of the first pass
CHOSEN, NOT_FINITE = 0, 1  # status of a row


@triton.jit
def _key(x):
    """Numbers in the order of the logits: 0 to 2³² - 1."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0 and 0 are equal
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def scan(logits, best, at, total, V, chunks, CHUNK: tl.constexpr):
    """Of every chunk of a row: its highest logit, which that is, and the sum of exponentials below it."""
    b, c = tl.program_id(0), tl.program_id(1)
    i = c * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + b.to(tl.int64) * V + i, mask=i < V, other=float("-inf")).to(tl.float32)
    nan = tl.max((x != x).to(tl.int32), 0)
    x = tl.where(x != x, float("-inf"), x)
    high = tl.max(x, 0)
    where = tl.min(tl.where((x == high) & (i < V), i, 2147483647), 0)
    low = tl.where(high == float("-inf"), 0.0, high)
    tl.store(best + b * chunks + c, tl.where(nan > 0, float("nan"), high))
    tl.store(at + b * chunks + c, where)
    tl.store(total + b * chunks + c, tl.sum(tl.exp(x - low), 0))


@triton.jit
def _highest(best, b, chunks, CHUNKS: tl.constexpr):
    c = tl.arange(0, CHUNKS)
    x = tl.load(best + b * chunks + c, mask=c < chunks, other=float("-inf"))
    nan = tl.max((x != x).to(tl.int32), 0)
    return x, tl.where(nan > 0, float("nan"), tl.max(tl.where(x != x, float("-inf"), x), 0))


@triton.jit
def weigh(logits, best, settings, weights, V, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """Probabilities up to a factor, in float64; for rows that draw."""
    b, c = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(settings + b * 3)
    if temperature == 0.0:
        return
    i = c * CHUNK + tl.arange(0, CHUNK)
    _, high = _highest(best, b, chunks, CHUNKS)
    at = b.to(tl.int64) * V + i
    x = tl.load(logits + at, mask=i < V, other=float("-inf")).to(tl.float32).to(tl.float64)
    tl.store(weights + at, tl.exp(x / temperature - high.to(tl.float64) / temperature), mask=i < V)


@triton.jit
def _above(logits, weights, row, V, least, BLOCK: tl.constexpr):
    """How many logits of a row have at least this key, and their weight."""
    count = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row + i, mask=i < V, other=float("-inf")).to(tl.float32)
        in_it = (_key(x) >= least) & (i < V)
        count += in_it.to(tl.int32)
        mass += tl.where(in_it, tl.load(weights + row + i, mask=i < V, other=0.0), 0.0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _last_with(logits, weights, row, V, count_goal, mass_goal, STRICT: tl.constexpr, BLOCK: tl.constexpr):
    """The highest key at and above which there are so many logits, or so much weight (more than that, if STRICT)."""
    key = (V * 0).to(tl.int64)
    for i in range(32):
        tried = key | ((key * 0 + 1) << (31 - i))
        count, mass = _above(logits, weights, row, V, tried, BLOCK)
        enough = (count >= count_goal) & (mass >= mass_goal)
        if STRICT:
            enough = (count >= count_goal) & (mass > mass_goal)
        key = tl.where(enough, tried, key)
    return key


@triton.jit
def _ties(logits, weights, row, V, key, BLOCK: tl.constexpr):
    """Of the logits with this key: how many there are, the weight of each, and the weight of all above."""
    count, mass = _above(logits, weights, row, V, key, BLOCK)
    count_above, mass_above = _above(logits, weights, row, V, key + 1, BLOCK)
    ties = count - count_above
    return ties, (mass - mass_above) / tl.maximum(ties, 1), count_above, mass_above


@triton.jit
def _nth(logits, row, V, key, wanted, BLOCK: tl.constexpr):
    """Which logit is the one after ``wanted`` others with this key."""
    found = V * 0
    before = V * 0
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row + i, mask=i < V, other=float("-inf")).to(tl.float32)
        same = ((_key(x) == key) & (i < V)).to(tl.int32)
        rank = before + tl.cumsum(same, 0) - same
        found += tl.sum(tl.where((same > 0) & (rank == wanted), i, 0), 0)
        before += tl.sum(same, 0)
    return found


@triton.jit
def _drawn(logits, weights, row, V, u, top_k, top_p, min_p, BLOCK: tl.constexpr):
    """Inverse distribution function over the front that the filters leave."""
    end = (V * 0).to(tl.int64)  # the last key of the front
    kept_ties = V
    mass = 0.0 * u
    if top_k > 0:
        end = _last_with(logits, weights, row, V, tl.minimum(top_k, V), 0.0, False, BLOCK)
        ties, each, count_above, mass_above = _ties(logits, weights, row, V, end, BLOCK)
        kept_ties = tl.minimum(top_k, V) - count_above
        mass = mass_above + kept_ties * each
    else:
        _, mass = _above(logits, weights, row, V, end, BLOCK)
    whole = mass
    if top_p < 1.0:
        limit = tl.maximum(top_p * whole, 1e-300)
        key = _last_with(logits, weights, row, V, 0, limit, False, BLOCK)
        ties, each, _, mass_above = _ties(logits, weights, row, V, key, BLOCK)
        inside = tl.minimum(tl.ceil((limit - mass_above) / each).to(tl.int32), ties)
        inside = tl.maximum(inside, 1)
        shorter = (key > end) | ((key == end) & (inside < kept_ties))
        kept_ties = tl.where(shorter, inside, kept_ties)
        mass = tl.where(shorter, mass_above + inside * each, mass)
        end = tl.maximum(end, key)
    if min_p > 0.0:
        lowest = tl.full((BLOCK,), 4294967295, tl.int64)
        for start in range(0, V, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.load(logits + row + i, mask=i < V, other=float("-inf")).to(tl.float32)
            w = tl.load(weights + row + i, mask=i < V, other=0.0)
            lowest = tl.where((w >= min_p) & (i < V), tl.minimum(lowest, _key(x)), lowest)  # the best weighs 1
        key = tl.min(lowest, 0)
        if key > end:
            kept_ties = V
            _, mass = _above(logits, weights, row, V, key, BLOCK)
            end = key
    target = u * mass
    key = tl.maximum(_last_with(logits, weights, row, V, 0, target, True, BLOCK), end)
    ties, each, _, mass_above = _ties(logits, weights, row, V, key, BLOCK)
    last = tl.where(key == end, tl.minimum(kept_ties, ties), ties) - 1
    nth = tl.floor((target - mass_above) / each).to(tl.int32)
    return _nth(logits, row, V, key, tl.minimum(tl.maximum(nth, 0), last), BLOCK)


@triton.jit
def choose(
    logits, best, at, total, weights, settings, top_k, uniforms, tokens, held, pos, taken, out_tokens, out_logprobs,
    out_status, V, chunks, rows, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The row's token, to where the next pass reads it and to its place in the outputs; the row moves on by one."""
    b = tl.program_id(0)
    n = tl.load(held + b)
    if n < 0:
        return
    step = tl.load(taken + b)
    x, high = _highest(best, b, chunks, CHUNKS)
    c = tl.arange(0, CHUNKS)
    where = tl.load(at + b * chunks + c, mask=c < chunks, other=2147483647)
    token = tl.min(tl.where(x == high, where, 2147483647), 0)
    sums = tl.load(total + b * chunks + c, mask=c < chunks, other=0.0)
    fine = (high == high) & (tl.abs(high) != float("inf"))
    low = tl.where(fine, high, 0.0)
    lse = low + tl.log(tl.sum(tl.where(c < chunks, sums * tl.exp(x - low), 0.0), 0))
    row = b.to(tl.int64) * V
    if fine & (tl.load(settings + b * 3) > 0.0):
        u = tl.load(uniforms + step.to(tl.int64) * rows + b)
        token = _drawn(
            logits, weights, row, V, u, tl.load(top_k + b), tl.load(settings + b * 3 + 1),
            tl.load(settings + b * 3 + 2), BLOCK,
        )  # fmt: skip
    token = tl.where(fine, token, 0)
    chosen = tl.load(logits + row + token).to(tl.float32)
    to = step.to(tl.int64) * rows + b
    tl.store(out_tokens + to, token)
    tl.store(out_logprobs + to, chosen - lse)
    tl.store(out_status + to, tl.where(fine, 0, 1))
    tl.store(tokens + b, token)
    tl.store(held + b, n + 1)
    tl.store(pos + b, tl.load(pos + b) + 1)
    tl.store(taken + b, step + 1)


@dataclass(frozen=True)
class Choices:
    """How the rows choose, and what they have chosen, all on the device."""

    settings: Tensor  # (B, 3) float64: temperature (0: the likeliest), top_p (1: all), min_p (0: all)
    top_k: Tensor  # (B,) int32, 0: all
    uniforms: Tensor  # (steps, B) float64
    taken: Tensor  # (B,) int32: steps done
    tokens: Tensor  # (steps, B) int32
    logprobs: Tensor  # (steps, B) float32
    status: Tensor  # (steps, B) int32

    @staticmethod
    def over(settings: Tensor, top_k: Tensor, uniforms: Tensor, taken: Tensor) -> Choices:
        """With room for what will be chosen."""

        def new(dtype: torch.dtype) -> Tensor:
            return torch.zeros(uniforms.shape, dtype=dtype, device=settings.device)

        return Choices(settings, top_k, uniforms, taken, new(torch.int32), new(torch.float32), new(torch.int32))


def choose_tokens(
    logits: Tensor, choices: Choices, tokens: Tensor, held: Tensor, pos: Tensor, *, block: int = 16384
) -> None:
    """One token for every row of logits (B, V) that is in use (held ≥ 0), into ``tokens`` (B,) and ``choices``."""
    B, V = logits.shape
    chunks = triton.cdiv(V, CHUNK)
    device = logits.device
    best = torch.empty((B, chunks), device=device)
    at = torch.empty((B, chunks), dtype=torch.int32, device=device)
    total = torch.empty((B, chunks), device=device)
    weights = torch.empty((B, V), dtype=torch.float64, device=device)
    width = triton.next_power_of_2(chunks)
    kernel: Launch = scan
    kernel[(B, chunks)](logits, best, at, total, V, chunks, CHUNK=CHUNK, num_warps=4)
    kernel = weigh
    kernel[(B, chunks)](logits, best, choices.settings, weights, V, chunks, CHUNK=CHUNK, CHUNKS=width, num_warps=4)
    kernel = choose
    kernel[(B,)](
        logits, best, at, total, weights, choices.settings, choices.top_k, choices.uniforms, tokens, held, pos,
        choices.taken, choices.tokens, choices.logprobs, choices.status, V, chunks, B, CHUNKS=width, BLOCK=block,
        num_warps=32 if block >= 8192 else 4,
    )  # fmt: skip
