"""The rows with a cache: whatever way tokens arrive, it equals one full pass."""

from __future__ import annotations

import torch

from vantage.conformance.callables import CallableModel
from vantage.conformance.diagnose import explain_counting, explain_wrong_steps
from vantage.conformance.fault import Fault
from vantage.conformance.own_rows import explain_inside
from vantage.conformance.probe import Finding, Probe, gap, gaps
from vantage.conformance.ragged import Ragged
from vantage.conformance.subject import NotApplicable


def cached_steps(p: Probe) -> Finding:
    tokens = p.tokens[:2]
    errors = gaps(p.steps(tokens), p.full(tokens))

    def cause() -> Fault:
        inside = p.earlier("causal") or explain_inside(p, "cached steps", lambda: p.steps(tokens), cached=True)
        return inside or explain_wrong_steps(p, errors)

    return p.judge(max(errors), cause)


def cached_chunks(p: Probe) -> Finding:
    tokens, sizes = p.tokens[:2], p.chunk_sizes()
    errors = gaps(p.feed(tokens, sizes), p.full(tokens))

    def cause() -> Fault:
        if (fault := p.earlier("cached-steps")) is not None:
            return fault
        if (inside := explain_inside(p, "chunks", lambda: p.feed(tokens, sizes), cached=True)) is not None:
            return inside
        first = next(t for t, error in enumerate(errors) if not error <= p.tolerance)
        name = "a chunk of several tokens after a filled cache is wrong where single steps are right"
        look = "the chunk's mask, aligned to the start of the row instead of its end, or positions that start anew"
        return Fault(name, "", f"first at token {first}, {errors[first]:.1e} off", look)

    return p.judge(max(errors), cause)


def cached_counting(p: Probe) -> Finding:
    if isinstance(p.subject, CallableModel):
        raise NotApplicable("it is given positions, and a cache that is its own")
    tokens, half = p.tokens[:2], p.prefill
    p.settled(p.step_sizes(p.width))
    cache = p.subject.new_cache(len(tokens))
    pieces = tokens.split(p.step_sizes(p.width), 1)
    errors = gaps(torch.cat([p.subject.run(piece, None, cache) for piece in pieces], 1), p.full(tokens))

    def cause() -> Fault:
        if (fault := p.earlier("cached-steps")) is not None:
            return fault
        return explain_counting(p, half, errors)

    return p.judge(max(errors), cause)


def padding_cached(p: Probe) -> Finding:
    more = max(1, p.width // 5)
    rows = Ragged.of(p, left=True, more=more)
    sizes = torch.tensor(rows.sizes, device=p.tokens.device)[:, None]
    p.settled([min(rows.sizes), *[1] * (more + p.width)])

    def padded() -> float:
        cache = p.subject.new_cache(len(rows.tokens))
        logits = p.subject.run(rows.tokens, rows.positions, cache)
        later = [p.subject.run(p.tokens.gather(1, sizes + i), sizes + i, cache) for i in range(more)]
        return rows.off(logits, torch.cat(later, 1))

    def cause() -> Fault:
        if (fault := p.earlier("padding-left", "cached-steps")) is not None:
            return fault
        inside = explain_inside(p, "steps after a left-padded prompt", padded, cached=True)
        name = "padding is attended through the cache, or rows of unequal length go on at wrong positions"
        return inside or Fault(
            name, "", f"{measured:.1e} off", "what the cache keeps of padding, and where each row goes on"
        )

    measured = padded()
    return p.judge(measured, cause)


def rollback(p: Probe) -> Finding:
    tokens, half = p.tokens[:2], p.prefill
    p.settled([half, *[1] * (p.width - half)])
    where = p.positions(tokens)

    def taken_back() -> torch.Tensor:
        cache = p.subject.new_cache(len(tokens))
        logits = [p.subject.run(tokens[:, :half], where[:, :half], cache)]
        draft = slice(half, half + 2)
        p.subject.run(p.changed(tokens[:, draft]), where[:, draft], cache)
        p.subject.crop(cache, half)
        logits += [p.subject.run(tokens[:, t : t + 1], where[:, t : t + 1], cache) for t in range(half, p.width)]
        return torch.cat(logits, 1)

    errors = gaps(taken_back(), p.full(tokens))

    def cause() -> Fault:
        if (fault := p.earlier("cached-steps")) is not None:
            return fault
        if (inside := explain_inside(p, "steps after crop", taken_back, cached=True, taken_back=True)) is not None:
            return inside
        first = next(t for t, error in enumerate(errors) if not error <= p.tolerance)
        name = "crop keeps entries that were taken back, or goes on at the wrong place"
        shows = f"wrong from token {first} on, {errors[first]:.1e} off, right without a crop"
        return Fault(name, "", shows, "crop(): it drops the last entries of every layer, and where the next one goes")

    return p.judge(max(errors), cause)


def fork(p: Probe) -> Finding:
    tokens, half = p.tokens[:2], p.prefill
    p.settled([half, *[1] * (p.width - half)])
    other = torch.cat([tokens[:, :half], p.changed(tokens[:, half:])], 1)
    where, run = p.positions(tokens), p.subject.run
    first = p.subject.new_cache(len(tokens))
    run(tokens[:, :half], where[:, :half], first)
    second = p.subject.fork(first)
    one, two = [], []
    for t in range(half, p.width):
        one.append(run(tokens[:, t : t + 1], where[:, t : t + 1], first))
        two.append(run(other[:, t : t + 1], where[:, t : t + 1], second))
    branches = torch.cat(one, 1), torch.cat(two, 1)
    errors = [gap(branch, p.full(row)[:, half:]) for branch, row in zip(branches, (tokens, other), strict=True)]

    def cause() -> Fault:
        if (fault := p.earlier("cached-steps")) is not None:
            return fault
        alone = [p.steps(row)[:, half:] for row in (tokens, other)]  # the second has tokens that no other row has
        if all(gap(branch, row) <= p.floor for branch, row in zip(branches, alone, strict=True)):
            shows = f"{max(errors):.1e} off one pass, with a fork and without, where {p.tolerance:.1e} is allowed"
            return Fault("cached steps are off for some tokens", "", shows, "tolerance=: this may be rounding")
        shows = f"the first branch is {errors[0]:.1e} off, the second {errors[1]:.1e}, and each alone is right"
        return Fault(
            "two branches of one cache see each other", "", shows, "fork(): memory that both write must be copied"
        )

    return p.judge(max(errors), cause)
