"""A token for every row from its logits, as ``generation.sampling`` chooses it, without the host.

The order of the vocabulary is best first, equals by their number, and what is kept is always a front of it. So no sort
is needed: where the front ends, and where the random number falls, is found in the logits' own bits, some of them at a
time, by summing what lies above. Weights are whole numbers (about 2**45 for the best of 128,000), so that sums are the
same in any order; half a unit in each moves a choice once in 10**9 tokens or less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

Launch = Any  # triton's kernels: indexed by their grid, then called
CHUNK = 1024  # logits of one program
BITS = (11, 11, 10)  # of a logit's key, from the highest on, that one level of a search finds
BINS = 2048
CHOSEN, NOT_FINITE = 0, 1  # status of a row
TOP_K, TOP_P, DRAW = 0, 1, 2  # what is searched for: the last logit that top-k leaves, top-p's, and the one drawn


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
def _weight(logit, high, temperature, unit):
    """Probabilities up to a factor, as whole numbers from 1 on."""
    w = tl.exp(logit.to(tl.float64) / temperature - high.to(tl.float64) / temperature)
    return w, tl.maximum((w * unit + 0.5).to(tl.int64), 1)


@triton.jit
def weigh(
    logits, best, settings, weights, masses, floor_masses, floor_keys, V, chunks, unit, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """For rows that draw: the weight of every logit. Of every chunk their sum, and of those that min-p leaves the sum
    and the lowest key: the best weighs one ``unit``."""
    b, c = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(settings + b * 3)
    if temperature == 0.0:
        return
    i = c * CHUNK + tl.arange(0, CHUNK)
    _, high = _highest(best, b, chunks, CHUNKS)
    at = b.to(tl.int64) * V + i
    logit = tl.load(logits + at, mask=i < V, other=float("-inf")).to(tl.float32)
    share, w = _weight(logit, high, temperature, unit)
    w = tl.where((i < V) & (logit != float("-inf")), w, 0)
    tl.store(weights + at, w, mask=i < V)
    left = (share >= tl.load(settings + b * 3 + 2)) & (i < V)
    tl.store(masses + b * chunks + c, tl.sum(w, 0))
    tl.store(floor_masses + b * chunks + c, tl.sum(tl.where(left, w, 0), 0))
    tl.store(floor_keys + b * chunks + c, tl.min(tl.where(left, _key(logit), 4294967295), 0))


@triton.jit
def _searches(settings, top_k, b, SEARCH: tl.constexpr):
    """Whether this row has something to search for."""
    wanted = tl.load(settings + b * 3) > 0.0
    if SEARCH == 0:
        wanted = wanted & (tl.load(top_k + b) > 0)
    if SEARCH == 1:
        wanted = wanted & (tl.load(settings + b * 3 + 1) < 1.0)
    return wanted


@triton.jit
def descend(
    logits, weights, settings, top_k, sums, prefixes, V, SEARCH: tl.constexpr, BITS: tl.constexpr, SHIFT: tl.constexpr,
    BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One level of a search: the logits whose key begins with the row's prefix, summed by their next bits into ``sums``
    (B, BINS). For top-k each counts as 1, else as its weight."""
    b, c = tl.program_id(0), tl.program_id(1)
    if _searches(settings, top_k, b, SEARCH) == 0:
        return
    i = c * CHUNK + tl.arange(0, CHUNK)
    at = b.to(tl.int64) * V + i
    key = _key(tl.load(logits + at, mask=i < V, other=float("-inf")).to(tl.float32))
    matches = ((key >> (SHIFT + BITS)) == tl.load(prefixes + b)) & (i < V)
    if SEARCH == 0:
        w = matches.to(tl.int64)
    else:
        w = tl.load(weights + at, mask=matches, other=0)
    tl.atomic_add(sums + b * BINS + ((key >> SHIFT) & ((1 << BITS) - 1)), w, mask=matches, sem="relaxed")


@triton.jit
def narrow(
    settings, top_k, sums, goals, prefixes, here, above, SEARCH: tl.constexpr, BITS: tl.constexpr, BINS: tl.constexpr
):
    """The next bits of the key that is searched for: the sum of what begins with it (``here``), and of all above. The
    sums are 0 again."""
    b = tl.program_id(0)
    if _searches(settings, top_k, b, SEARCH) == 0:
        return
    d = tl.arange(0, BINS)
    sum_d = tl.load(sums + b * BINS + d)
    above_d = tl.load(above + b) + tl.sum(sum_d, 0) - tl.cumsum(sum_d, 0)
    goal = tl.load(goals + b)
    if SEARCH == 2:
        enough = (above_d + sum_d).to(tl.float64) > goal
    else:
        enough = (above_d + sum_d).to(tl.float64) >= goal
    lowest = tl.min(tl.where(sum_d > 0, d, BINS - 1), 0)  # a goal may lie beyond all of it by a rounding
    digit = tl.maximum(tl.max(tl.where(enough & (sum_d > 0), d, 0), 0), lowest)
    tl.store(prefixes + b, (tl.load(prefixes + b) << BITS) | digit)
    tl.store(here + b, tl.sum(tl.where(d == digit, sum_d, 0), 0))
    tl.store(above + b, tl.sum(tl.where(d == digit, above_d, 0), 0))
    tl.store(sums + b * BINS + d, tl.zeros((BINS,), tl.int64))


@triton.jit
def _float(key):
    """The logit of a key."""
    bits = (key - 2147483648).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def gather_mass(logits, weights, settings, top_k, prefixes, masses_above, V, SEARCH: tl.constexpr, CHUNK: tl.constexpr):
    """After top-k's search, which counts: the weight of all above its key."""
    b, c = tl.program_id(0), tl.program_id(1)
    if _searches(settings, top_k, b, SEARCH) == 0:
        return
    i = c * CHUNK + tl.arange(0, CHUNK)
    at = b.to(tl.int64) * V + i
    key = _key(tl.load(logits + at, mask=i < V, other=float("-inf")).to(tl.float32))
    w = tl.load(weights + at, mask=(i < V) & (key > tl.load(prefixes + b)), other=0)
    tl.atomic_add(masses_above + b, tl.sum(w, 0), sem="relaxed")


@triton.jit
def settle(
    best, settings, top_k, uniforms, taken, goals, prefixes, here, above, masses_above, fronts, kept, masses_of_fronts,
    masses, floor_masses, floor_keys, V, chunks, rows, unit, SEARCH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Between two searches: what the one before has found becomes the front's end, and the next one's goal.

    ``SEARCH``: the next one. ``fronts``: the last key of the front; ``kept``: how many logits of that key are in it.
    """
    b = tl.program_id(0)
    temperature = tl.load(settings + b * 3)
    if temperature == 0.0:
        return
    k = tl.load(top_k + b)
    top_p = tl.load(settings + b * 3 + 1)
    c = tl.arange(0, CHUNKS)
    if SEARCH == 0:
        tl.store(fronts + b, (b * 0).to(tl.int64))
        tl.store(kept + b, V)
        tl.store(masses_of_fronts + b, tl.sum(tl.load(masses + b * chunks + c, mask=c < chunks, other=0), 0))
        tl.store(masses_above + b, (b * 0).to(tl.int64))
        tl.store(goals + b, tl.minimum(k, V).to(tl.float64))
    else:
        searched = k > 0
        if SEARCH == 2:
            searched = top_p < 1.0
        if searched:
            key = tl.load(prefixes + b)
            _, high = _highest(best, b, chunks, CHUNKS)
            _, each = _weight(_float(key), high, temperature, unit)
            if SEARCH == 1:
                ties = tl.load(here + b)
                inside = tl.minimum(k, V) - tl.load(above + b)
                mass_above = tl.load(masses_above + b)
            else:
                ties = tl.load(here + b) // each
                mass_above = tl.load(above + b)
                inside = tl.ceil((tl.load(goals + b) - mass_above.to(tl.float64)) / each.to(tl.float64)).to(tl.int64)
            inside = tl.maximum(tl.minimum(inside, ties), 1)
            end = tl.load(fronts + b)
            if (key > end) | ((key == end) & (inside < tl.load(kept + b))):
                tl.store(fronts + b, key)
                tl.store(kept + b, inside.to(tl.int32))
                tl.store(masses_of_fronts + b, mass_above + inside * each)
        if SEARCH == 1:
            tl.store(goals + b, tl.maximum(top_p * tl.load(masses_of_fronts + b).to(tl.float64), 1.0))
        else:
            if tl.load(settings + b * 3 + 2) > 0.0:
                floor = tl.min(tl.load(floor_keys + b * chunks + c, mask=c < chunks, other=4294967295), 0)
                if floor > tl.load(fronts + b):
                    tl.store(fronts + b, floor)
                    tl.store(kept + b, V)
                    left = tl.sum(tl.load(floor_masses + b * chunks + c, mask=c < chunks, other=0), 0)
                    tl.store(masses_of_fronts + b, left)
            u = tl.load(uniforms + tl.load(taken + b).to(tl.int64) * rows + b)
            tl.store(goals + b, u * tl.load(masses_of_fronts + b).to(tl.float64))
    tl.store(prefixes + b, (b * 0).to(tl.int64))  # the next search begins with nothing above
    tl.store(above + b, (b * 0).to(tl.int64))


@triton.jit
def count_ties(logits, settings, prefixes, fronts, ties, V, chunks, CHUNK: tl.constexpr):
    """How many logits of each chunk have the key that was drawn, or the front's last where that one lies beyond it."""
    b, c = tl.program_id(0), tl.program_id(1)
    if tl.load(settings + b * 3) == 0.0:
        return
    i = c * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + b.to(tl.int64) * V + i, mask=i < V, other=float("-inf")).to(tl.float32)
    key = tl.maximum(tl.load(prefixes + b), tl.load(fronts + b))
    tl.store(ties + b * chunks + c, tl.sum(((_key(x) == key) & (i < V)).to(tl.int32), 0))


@triton.jit
def _nth(logits, row, V, chunk, key, wanted, CHUNK: tl.constexpr):
    """Which logit of a chunk is the one after ``wanted`` others with this key."""
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row + i, mask=i < V, other=float("-inf")).to(tl.float32)
    same = ((_key(x) == key) & (i < V)).to(tl.int32)
    rank = tl.cumsum(same, 0) - same
    return tl.sum(tl.where((same > 0) & (rank == wanted), i, 0), 0)


@triton.jit
def choose(
    logits, best, at, total, settings, tokens, held, pos, taken, out_tokens, out_logprobs, out_status, goals, prefixes,
    above, fronts, kept, ties, V, chunks, rows, unit, DRAWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
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
    exponentials = tl.load(total + b * chunks + c, mask=c < chunks, other=0.0)
    fine = (high == high) & (tl.abs(high) != float("inf"))
    low = tl.where(fine, high, 0.0)
    lse = low + tl.log(tl.sum(tl.where(c < chunks, exponentials * tl.exp(x - low), 0.0), 0))
    row = b.to(tl.int64) * V
    if DRAWS:  # noqa: SIM102 (known when it is compiled, unlike the next)
        if fine & (tl.load(settings + b * 3) > 0.0):
            by_chunk = tl.load(ties + b * chunks + c, mask=c < chunks, other=0)
            key = tl.load(prefixes + b)
            end = tl.load(fronts + b)
            last = tl.sum(by_chunk, 0) - 1
            if key <= end:
                last = tl.minimum(last, tl.load(kept + b) - 1)
            _, each = _weight(_float(key), high, tl.load(settings + b * 3), unit)
            beyond = tl.load(goals + b) - tl.load(above + b).to(tl.float64)
            nth = tl.maximum(tl.floor(beyond / each.to(tl.float64)).to(tl.int32), 0)
            nth = tl.minimum(tl.where(key < end, last, nth), last)  # below the front's end by a rounding: its last
            chunk = tl.sum((tl.cumsum(by_chunk, 0) <= nth).to(tl.int32), 0)
            earlier = tl.sum(tl.where(c < chunk, by_chunk, 0), 0)
            token = _nth(logits, row, V, chunk, tl.maximum(key, end), nth - earlier, CHUNK)
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


class Searches(NamedTuple):
    """What some row of a batch needs: nothing where all take the likeliest token."""

    draws: bool
    top_k: bool = False
    top_p: bool = False


def choose_tokens(
    logits: Tensor,
    choices: Choices,
    tokens: Tensor,
    held: Tensor,
    pos: Tensor,
    searches: Searches = Searches(True, True, True),
    *,
    chunk: int = CHUNK,
) -> None:
    """One token for every row of logits (B, V) that is in use (held ≥ 0), into ``tokens`` (B,) and ``choices``."""
    B, V = logits.shape
    chunks = triton.cdiv(V, chunk)
    device, settings, top_k = logits.device, choices.settings, choices.top_k

    def new(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    best, at, total = (new(B, chunks, dtype=dtype) for dtype in (torch.float32, torch.int32, torch.float32))
    width = triton.next_power_of_2(chunks)
    unit = 2.0 ** (62 - V.bit_length())
    kernel: Launch = scan
    kernel[(B, chunks)](logits, best, at, total, V, chunks, CHUNK=chunk, num_warps=4)
    wide = B if searches.draws else 1
    goals = new(wide, dtype=torch.float64)
    prefixes, here, above, masses_above, fronts, masses_of_fronts = (new(wide) for _ in range(6))
    kept, ties = new(wide, dtype=torch.int32), new(wide, chunks, dtype=torch.int32)
    if searches.draws:
        weights, masses, floor_masses, floor_keys = new(B, V), *(new(B, chunks) for _ in range(3))
        sums = torch.zeros((B, BINS), dtype=torch.int64, device=device)
        kernel = weigh
        kernel[(B, chunks)](
            logits, best, settings, weights, masses, floor_masses, floor_keys, V, chunks, unit, CHUNK=chunk,
            CHUNKS=width, num_warps=4,
        )  # fmt: skip
        for search, wanted in ((TOP_K, searches.top_k), (TOP_P, searches.top_p), (DRAW, True)):
            kernel = settle
            kernel[(B,)](
                best, settings, top_k, choices.uniforms, choices.taken, goals, prefixes, here, above, masses_above,
                fronts, kept, masses_of_fronts, masses, floor_masses, floor_keys, V, chunks, B, unit, SEARCH=search,
                CHUNKS=width, num_warps=1,
            )  # fmt: skip
            shift = 32
            for bits in BITS if wanted else ():
                shift -= bits
                kernel = descend
                kernel[(B, chunks)](
                    logits, weights, settings, top_k, sums, prefixes, V, SEARCH=search, BITS=bits, SHIFT=shift,
                    BINS=BINS, CHUNK=chunk, num_warps=4,
                )  # fmt: skip
                kernel = narrow
                kernel[(B,)](
                    settings, top_k, sums, goals, prefixes, here, above, SEARCH=search, BITS=bits, BINS=BINS,
                    num_warps=8,
                )  # fmt: skip
            if search == TOP_K and wanted:
                kernel = gather_mass
                kernel[(B, chunks)](
                    logits, weights, settings, top_k, prefixes, masses_above, V, SEARCH=search, CHUNK=chunk,
                    num_warps=4,
                )  # fmt: skip
        kernel = count_ties
        kernel[(B, chunks)](logits, settings, prefixes, fronts, ties, V, chunks, CHUNK=chunk, num_warps=4)
    kernel = choose
    kernel[(B,)](
        logits, best, at, total, settings, tokens, held, pos, choices.taken, choices.tokens, choices.logprobs,
        choices.status, goals, prefixes, above, fronts, kept, ties, V, chunks, B, unit, DRAWS=searches.draws,
        CHUNK=chunk, CHUNKS=width, num_warps=4,
    )  # fmt: skip
