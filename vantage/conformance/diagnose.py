"""Why cached steps differ from a full pass: experiments that tell a wrong position from a lost entry.

Everything is asked through ``(tokens, positions, cache)``:

1. Told to stand at position 0, is a step right that is wrong elsewhere? Then 0 is where it is encoded.
2. Does a full pass change with the last token's position, but a cached step not? Then the step does not read it.
3. Does moving the whole row leave a full pass as it is (a relative encoding), but change the steps? Then
   something in a step stands at a place that did not move along.

A lost, doubled or overwritten entry does none of the three.
"""

from __future__ import annotations

import torch

from vantage.conformance.probe import Probe, gap

WRONG_PLACE = "a key (or query) of a cached step is encoded at position 0"


def explain_wrong_steps(p: Probe, errors: list[float]) -> str:
    """``errors``: the difference at each place of ``p.tokens[:2]``, prefilled and then stepped."""
    first = next(t for t, error in enumerate(errors) if not error <= p.tolerance)
    if first < p.prefill:
        return (
            f"the prefill into an empty cache is already wrong at token {first}, so the cached path computes "
            "something else than the full pass, whatever the cache holds"
        )
    if _sees_nothing(p, first):
        return "a cached step sees nothing of what came before: the cache is not read, or it is emptied between calls"
    if p.subject.facts.places_apart and _right_at_zero(p, first):
        return (
            f"{WRONG_PLACE}, wherever it stands: told to stand at 0 it is right, told to stand at {first} it is "
            f"{errors[first]:.1e} off"
        )
    if _ignores_position(p, first):
        return (
            f"{WRONG_PLACE}, or at another fixed place: moving the last token changes a full pass but not a cached step"
        )
    still = _moves(p, first, cached=False) <= p.tolerance
    moved = _moves(p, first, cached=True) if still else 0.0
    if moved > p.tolerance:
        return (
            f"{WRONG_PLACE}, or at another wrong position: moving the whole row by {p.shift} leaves a full pass as it "
            f"is, as a relative encoding should, but changes a cached step by {moved:.1e}"
        )
    since = "wrong from the first" if first == p.prefill else f"right up to {first} tokens and wrong from there on"
    positions_tested = p.subject.facts.places_apart or (still and p.shift)
    remark = (
        " (positions are not it: moved tokens and rows give what they should)"
        if positions_tested
        else ", or stands wrong"
    )
    return f"the cache loses, doubles or overwrites an entry{remark}; cached steps are {since}"


def _sees_nothing(p: Probe, t: int) -> bool:
    """Whether step t is the same whatever came before it, where a full pass is not."""
    tokens = p.tokens[:2, : t + 1]
    other = torch.cat([p.changed(tokens[:, :t]), tokens[:, t:]], 1)
    whole = gap(p.full(tokens)[:, t], p.full(other)[:, t])
    step = gap(p.steps(tokens)[:, t], p.steps(other)[:, t])
    return whole > p.tolerance and step <= p.floor


def _right_at_zero(p: Probe, t: int) -> bool:
    """Whether a step after t tokens is wrong at its place, and right only if it is told to stand at 0.

    The tokens before it then stand at 1, 2, …; to be told another place out of order is the counter-test.
    """
    tokens, run = p.tokens[:2, : t + 1], p.subject.misplaced
    usual = p.positions(tokens)
    off = []
    for positions in (usual, usual + 1, usual + 1):
        positions = positions.clone()
        positions[:, t] = (t, 0, t // 2)[len(off)]
        cache = p.subject.new_cache(len(tokens))
        run(tokens[:, :t], positions[:, :t], 0, cache)
        step = run(tokens[:, t:], positions[:, t:], t, cache)
        off.append(gap(step[:, 0], run(tokens, positions, 0)[:, t]))
    return off[1] <= p.tolerance < min(off[0], off[2])


def _ignores_position(p: Probe, t: int) -> bool:
    """Whether the place of the last token matters to a full pass but not to a step."""
    if not p.shift:
        return False
    tokens = p.tokens[:2, : t + 1]
    here = p.positions(tokens)
    moved = here.clone()
    moved[:, t] += p.shift
    whole = gap(p.subject.run(tokens, here)[:, t], p.subject.run(tokens, moved)[:, t])
    outs = []
    for positions in (here, moved):
        cache = p.subject.new_cache(len(tokens))
        sizes = p.step_sizes(t + 1)
        pieces = zip(tokens.split(sizes, 1), positions.split(sizes, 1), strict=True)
        outs.append([p.subject.run(piece, place, cache) for piece, place in pieces][-1][:, -1])
    return whole > p.tolerance and gap(outs[0], outs[1]) <= p.floor


def _moves(p: Probe, t: int, *, cached: bool) -> float:
    """How much the last of t + 1 tokens changes when the whole row is moved."""
    tokens, run = p.tokens[:2, : t + 1], p.steps if cached else p.full
    return gap(run(tokens)[:, t], run(tokens, p.shift)[:, t])
