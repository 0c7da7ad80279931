"""Why a model that nobody can look into goes wrong: experiments that tell likely faults apart.

Everything is asked through ``(tokens, positions, cache)``. For cached steps that differ from a full pass:

1. Does a row's step change with its neighbours' tokens? Then rows share a cache.
2. Are there tensors in the cache of a lower dtype than the model's? Then they round.
3. Is the prefill into an empty cache wrong already? Then it is the cached path, whatever is held.
4. Does a step change with what came before it? If not, nothing of the cache is read.
5. Told to stand one further on or back, or at 0, is the step right? Then that is how far off it is encoded.
6. Does a full pass change with the last token's position, but a cached step not? Then the step does not read it.
7. Does moving the whole row leave a full pass as it is (a relative encoding), but change the steps? Then something in
   a step stands at a place that did not move along.
8. Is the second token wrong after a single cached one? Then nothing can have been lost: it stands wrong.

A lost, doubled or overwritten entry does none of these.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vantage.conformance.fault import Fault
from vantage.conformance.own_rows import explain_inside
from vantage.conformance.probe import Probe, gap

DEEP = 4  # levels of a cache that are searched for tensors


def explain_wrong_steps(p: Probe, errors: list[float]) -> Fault:
    """``errors``: the difference at each place of ``p.tokens[:2]``, prefilled and then stepped."""
    first = next(t for t, error in enumerate(errors) if not error <= p.tolerance)
    off = errors[first]
    last = max(first, p.prefill)  # the first step that is wrong
    if (moved := _neighbours(p, last)) > p.floor:
        shows = f"other tokens in one row change the cached steps of another by {moved:.1e}, a full pass not at all"
        return Fault("rows share a cache", "", shows, "the row in which the cache writes and reads")
    if (dtype := _lower_dtype(p, max(errors))) is not None:
        shows = (
            f"cached steps are {off:.1e} off, and the cache holds {dtype} where the model computes in {_word(p.dtype)}"
        )
        return Fault("keys or values are kept in a lower dtype", "", shows, "the dtype of the cache's tensors")
    if first < p.prefill:
        return _wrong_prefill(p, first, off)
    if _sees_nothing(p, first):
        name = "a cached step sees nothing of what came before"
        look = "a cache that is not read, or emptied between calls"
        return Fault(name, "", f"{off:.1e} off, whatever the earlier tokens are", look)
    return _wrong_place(p, first, off) or _loses_entries(p, first, off)


def _wrong_prefill(p: Probe, first: int, off: float) -> Fault:
    shows = f"a prefill into an empty cache is already {off:.1e} off at token {first}"
    still, moved = (_moves(p, p.prefill - 1, cached=cached) for cached in (False, True))
    if still <= p.tolerance < moved:
        name = (
            "the cached path encodes keys at wrong positions: again when they are read, or elsewhere than a full pass"
        )
        shows = f"{shows}; moving the row by {p.shift} changes it by {moved:.1e}, and a full pass not at all"
        return Fault(name, "", shows, "what happens to keys between the cache and the scores: they are rotated once")
    name = "the cached path computes something else than the full pass, whatever the cache holds"
    return Fault(name, "", shows, "what the model does differently once it is given a cache")


def _wrong_place(p: Probe, first: int, off: float) -> Fault | None:
    """Whether a step stands somewhere else than it is told."""
    if (at := _encoded_at(p, first)) is not None:
        return _at_another_place(at, first, off)
    within = "positions that are counted within the call: a step is always its slot 0"
    if _ignores_position(p, first):
        name = "a cached step is encoded at position 0, or at another fixed place"
        shows = f"{off:.1e} off; moving the last token changes a full pass but not a cached step"
        return Fault(name, "", shows, within)
    still = _moves(p, first, cached=False) <= p.tolerance
    moved = _moves(p, first, cached=True) if still else 0.0
    if moved > p.tolerance:
        name = "a key (or query) of a cached step is encoded at position 0, or at another wrong position"
        shows = (
            f"moving the whole row by {p.shift} leaves a full pass as it is, as a relative encoding should, but "
            f"changes a cached step by {moved:.1e}"
        )
        return Fault(name, "", shows, "the positions of new keys, and whether cached keys are encoded again")
    tokens = p.tokens[:2, :2]
    second = gap(p.feed(tokens, [1, 1]), p.full(tokens))
    if second > p.tolerance:
        name = "a cached step is encoded at position 0, or at another place that it counts itself"
        shows = f"after a single cached token the second is already {second:.1e} off, so no entry can have been lost"
        return Fault(name, "", shows, within)
    return None


def _loses_entries(p: Probe, first: int, off: float) -> Fault:
    since = "wrong from the first" if first == p.prefill else f"right up to {first} tokens and wrong from there on"
    shows = f"cached steps are {since}, {off:.1e} off, and right after a single token"
    look = "where it puts new entries, and which it drops"
    name = "the cache loses, doubles or overwrites an entry"
    if p.subject.facts.places_apart or (p.shift and _moves(p, first, cached=False) <= p.tolerance):
        return Fault(name, "", f"{shows}; positions are not it: moved tokens and rows give what they should", look)
    return Fault(f"{name}, or a key stands wrong", "", f"{shows}; positions cannot be told apart here", look)


def _at_another_place(at: int, first: int, off: float) -> Fault:
    shows = f"{off:.1e} off at token {first}, and encoded at {at}: told to stand elsewhere by as much, it is right"
    look = "where the next position comes from: the number of cached tokens, not one more or less"
    if abs(at - first) == 1:
        return Fault("a cached step is encoded one position off", "", shows, look)
    return Fault(
        "a cached step is encoded at position 0",
        "",
        shows,
        "positions counted within the call: a step is always its slot 0",
    )


def explain_counting(p: Probe, first: int, errors: list[float]) -> Fault:
    """Positions that are left to the cache: is the first step that of another place?"""
    wrong = next(t for t, error in enumerate(errors) if not error <= p.tolerance)
    tokens = p.tokens[:2, : wrong + 1]
    cache = p.subject.new_cache(len(tokens))
    step = [p.subject.run(piece, None, cache) for piece in tokens.split(p.step_sizes(wrong + 1), 1)][-1][:, -1]
    name = "the cache computes the next token's position wrongly"
    for at in (wrong - 1, wrong + 1, 0):
        positions = p.positions(tokens).clone()
        positions[:, wrong] = at
        run = p.subject.misplaced
        if gap(run(tokens, positions, 0)[:, wrong], step) <= p.tolerance:
            by = f"{'one too low' if at < wrong else 'one too high'}" if at else "at 0"
            shows = f"token {wrong} is {errors[wrong]:.1e} off, and what it is at position {at}: {by}"
            return Fault(name, "", shows, "where the next position comes from: the number of tokens held")
    return Fault(
        name, "", f"{errors[wrong]:.1e} off from token {wrong} on, and right with positions given", "next_positions"
    )


# ---- the same input, another output


def why_not_repeatable(p: Probe, again: float, later: float) -> Fault:
    """Random numbers, or something that is kept between calls: told apart by the seed, and by fresh copies."""
    inside = explain_inside(p, "another call", lambda: p.full(p.tokens))
    where = "" if inside is None else f"{inside.where}: {inside.name.removesuffix(' computes something else')}"
    with torch.random.fork_rng():
        seeded = []
        for _ in range(2):
            torch.manual_seed(0)
            seeded.append(p.full(p.tokens))
    if gap(*seeded) <= p.floor < max(again, later):
        shows = f"two calls are {max(again, later):.1e} apart, and equal if torch's generator is seeded before each"
        return Fault(
            "random numbers are drawn",
            where,
            shows,
            "dropout that is left on (call .eval() on what the callable uses), or noise",
        )
    shows = f"two calls in a row are {again:.1e} apart, and {later:.1e} with another input in between"
    alike = _fresh_copies_agree(p)
    if again <= p.floor or alike:
        also = "; fresh copies of the model agree" if alike else ""
        return Fault(
            "something is kept between calls and changes the next",
            where,
            f"{shows}{also}",
            "buffers, counters and caches that a call writes and the next one reads",
        )
    if alike is None:
        name = "something is kept between calls, or the computation is not deterministic"
        shows = f"{shows}; a callable cannot be copied, so the two look the same"
    else:
        name = "the computation is not deterministic"
        shows = f"{shows}; fresh copies of the model differ as well, and torch's seed changes nothing"
    return Fault(
        name, where, shows, "random numbers that are not torch's, the clock, uninitialised memory (torch.empty)"
    )


def _fresh_copies_agree(p: Probe) -> bool | None:
    model = p.subject.model
    if not isinstance(model, nn.Module):
        return None
    try:
        copies = [copy.deepcopy(model) for _ in range(2)]
    except (TypeError, RuntimeError):  # something in it cannot be copied
        return None
    outs = []
    for fresh in copies:
        with p.subject.replaced(fresh):
            outs.append(p.full(p.tokens))
    return gap(*outs) <= p.floor


# ---- cached steps


def _sees_nothing(p: Probe, t: int) -> bool:
    """Whether step t is the same whatever came before it, where a full pass is not."""
    tokens = p.tokens[:2, : t + 1]
    other = torch.cat([p.changed(tokens[:, :t]), tokens[:, t:]], 1)
    whole = gap(p.full(tokens)[:, t], p.full(other)[:, t])
    step = gap(p.steps(tokens)[:, t], p.steps(other)[:, t])
    return whole > p.tolerance and step <= p.floor


def _neighbours(p: Probe, t: int) -> float:
    """How much the steps of a row change with the tokens of the other, where a full pass does not."""
    tokens = p.tokens[:2, : t + 1]
    others = (torch.cat([tokens[:1], p.changed(tokens[1:])]), torch.cat([p.changed(tokens[:1]), tokens[1:]]))
    whole, stepped = p.full(tokens), p.steps(tokens)
    if max(gap(p.full(other)[b], whole[b]) for b, other in enumerate(others)) > p.floor:
        return 0.0
    return max(gap(p.steps(other)[b], stepped[b]) for b, other in enumerate(others))


def _lower_dtype(p: Probe, worst: float) -> str | None:
    """The coarsest dtype of a tensor in a filled cache, where it is coarser than the model's and rounds so much."""
    cache = p.subject.new_cache(2)
    p.subject.run(p.tokens[:2], p.positions(p.tokens[:2]), cache)
    dtypes = {t.dtype for t in _tensors(cache, DEEP) if t.is_floating_point()}
    coarse = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=p.dtype)
    eps = torch.finfo(coarse).eps
    return _word(coarse) if eps > torch.finfo(p.dtype).eps and worst <= 64 * eps * p.scale else None


def _tensors(held: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(held, Tensor):
        yield held
    elif depth:
        inner = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else ()
        for value in (*inner, *(vars(held).values() if "__dict__" in dir(held) else ())):
            yield from _tensors(value, depth - 1)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _encoded_at(p: Probe, t: int) -> int | None:
    """Where a step is encoded: told to stand one further on or back, or at 0, is it what it should be?"""
    tokens = p.tokens[:2, : t + 1]
    right = p.full(tokens)[:, t]
    for by in (1, -1) if p.shift else ():
        positions = p.positions(tokens).clone()
        positions[:, t] += by
        with contextlib.suppress(Exception):  # a model may refuse to have a token stand there
            if gap(_stepped(p, tokens, positions), right) <= p.tolerance:
                return t - by
    if not p.subject.facts.places_apart:
        return None
    positions = p.positions(tokens).clone()
    positions[:, t] = 0
    return 0 if gap(p.subject.misplaced(tokens, positions, 0)[:, t], p.steps(tokens)[:, t]) <= p.tolerance else None


def _stepped(p: Probe, tokens: Tensor, positions: Tensor) -> Tensor:
    """The last logits of a prefill and steps at these positions."""
    cache = p.subject.new_cache(len(tokens))
    sizes = p.step_sizes(tokens.shape[1])
    pieces = zip(tokens.split(sizes, 1), positions.split(sizes, 1), strict=True)
    return [p.subject.run(piece, place, cache) for piece, place in pieces][-1][:, -1]


def _ignores_position(p: Probe, t: int) -> bool:
    """Whether the place of the last token matters to a full pass but not to a step."""
    if not p.shift:
        return False
    tokens = p.tokens[:2, : t + 1]
    here = p.positions(tokens)
    moved = here.clone()
    moved[:, t] += p.shift
    whole = gap(p.subject.run(tokens, here)[:, t], p.subject.run(tokens, moved)[:, t])
    return whole > p.tolerance and gap(_stepped(p, tokens, here), _stepped(p, tokens, moved)) <= p.floor


def _moves(p: Probe, t: int, *, cached: bool) -> float:
    """How much the last of t + 1 tokens changes when the whole row is moved."""
    tokens, run = p.tokens[:2, : t + 1], p.steps if cached else p.full
    return gap(run(tokens)[:, t], run(tokens, p.shift)[:, t])
