"""The rows of ``vt.check``: one law each, what it says, how it is measured and what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vantage.conformance.adapters import NotApplicable, OwnModel
from vantage.conformance.diagnose import explain_wrong_steps
from vantage.conformance.probe import Finding, Probe, gap, gaps
from vantage.conformance.window import window_exact
from vantage.errors import LengthExceeded

BEFORE, PAST = 8, 16  # tokens before and past the length at which a rule changes
GROWN_MOST = 128  # a longer original length is not recomputed for a row


@dataclass(frozen=True)
class Law:
    """A row before it is run."""

    name: str
    says: str
    run: Callable[[Probe], Finding]


# ---- without a cache


def repeatable(p: Probe) -> Finding:
    measured = gap(p.full(p.tokens), p.full(p.tokens))
    note = "it was in training mode; all rows are checked in eval mode" if p.was_training else ""
    return p.judge(
        measured,
        lambda: (
            "the same input gave two outputs: dropout is left on (call .eval() on what the callable uses), noise is "
            "added, or something is kept between calls"
        ),
        note,
    )


def causal(p: Probe) -> Finding:
    cuts = [t for t in (1, p.prefill, p.width - 1) if p.subject.settled(t)]
    if not cuts:
        raise NotApplicable("its tokens see later ones by design")
    usual = p.full(p.tokens)
    reached = {}  # cut -> the difference at each place before it
    for t in cuts:
        other = torch.cat([p.tokens[:, :t], p.changed(p.tokens[:, t:])], 1)
        reached[t] = gaps(p.full(other)[:, :t], usual[:, :t])

    def cause() -> str:
        t = max(cuts, key=lambda t: max(reached[t]))
        first = next(i for i, error in enumerate(reached[t]) if not error <= p.tolerance)
        what = "missing" if first == 0 and t > 1 else "off by one or more"
        return f"a change from token {t} on changes token {first}: the causal mask is {what}"

    return p.judge(max(max(errors) for errors in reached.values()), cause)


def rows_independent(p: Probe) -> Finding:
    together = p.full(p.tokens)
    measured = max(gap(together[b], p.full(p.tokens[b : b + 1])[0]) for b in range(len(together)))
    return p.judge(
        measured,
        lambda: (
            "rows of a batch leak into each other: something is computed over the whole batch (a norm, a router's "
            "capacity, a mask or positions taken from the first row)"
        ),
    )


def padding_left(p: Probe) -> Finding:
    return _padding(p, left=True)


def padding_right(p: Probe) -> Finding:
    return _padding(p, left=False)


def _padding(p: Probe, *, left: bool) -> Finding:
    rows = Ragged.of(p, left=left)
    measured = rows.off(p.subject.run(rows.tokens, rows.positions))

    def cause() -> str:
        filled = rows.positions >= 0
        usual = p.subject.run(rows.tokens, rows.positions)
        other = p.subject.run(torch.where(filled, rows.tokens, p.changed(rows.tokens)), rows.positions)
        if gap(usual[filled], other[filled]) > p.floor:
            return "padding leaks: real tokens see the padding, and change with what stands there"
        return (
            "a padded row is not the row alone, though what stands in the padding does not matter: its positions are "
            "counted from the padding, or the padding takes a share of the weights"
        )

    return p.judge(measured, cause)


@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length in one batch."""

    tokens: Tensor  # padding holds tokens too: it must not matter which
    positions: Tensor
    alone: tuple[Tensor, ...]  # what each row gives alone, (n, V)

    @staticmethod
    def of(p: Probe, *, left: bool, more: int = 0) -> Ragged:
        """``more``: the rows alone are longer by so many tokens, which are given later."""
        width = p.width - more
        sizes = (width, max(1, width - 5), max(1, width - 2))
        tokens, positions = p.changed(p.tokens[:, :width], 3), p.positions(p.tokens[:, :width]).clone()
        for b, n in enumerate(sizes):
            start = width - n if left else 0
            tokens[b, start : start + n] = p.tokens[b, :n]
            positions[b] -= start
            positions[b, start + n :] = -1
        alone = tuple(p.full(p.tokens[b : b + 1, : n + more])[0] for b, n in enumerate(sizes))
        return Ragged(tokens, positions.clamp_min(-1), alone)

    @property
    def sizes(self) -> list[int]:
        return (self.positions >= 0).sum(1).tolist()

    def off(self, logits: Tensor, later: Tensor | None = None) -> float:
        """The largest difference from the rows alone, padding left out."""
        errors = []
        for b, alone in enumerate(self.alone):
            got = logits[b][self.positions[b] >= 0]
            errors.append(gap(got if later is None else torch.cat([got, later[b]]), alone))
        return max(errors)


# ---- with a cache


def cached_steps(p: Probe) -> Finding:
    tokens = p.tokens[:2]
    errors = gaps(p.steps(tokens), p.full(tokens))
    return p.judge(max(errors), lambda: explain_wrong_steps(p, errors))


def cached_chunks(p: Probe) -> Finding:
    tokens, quarter = p.tokens[:2], max(1, p.width // 4)
    sizes = [quarter + 1, quarter - 1, 1, p.width - 2 * quarter - 1]
    errors = gaps(p.feed(tokens, [n for n in sizes if n]), p.full(tokens))

    def cause() -> str:
        if "cached-steps" in p.failed:
            return "as with single steps: see cached-steps"
        first = next(t for t, error in enumerate(errors) if not error <= p.tolerance)
        return (
            f"a chunk of several tokens after a filled cache is wrong (first at token {first}) where single steps are "
            "right: the chunk's mask is aligned to the start of the row instead of its end, or its positions start anew"
        )

    return p.judge(max(errors), cause)


def padding_cached(p: Probe) -> Finding:
    more = max(1, p.width // 5)
    rows = Ragged.of(p, left=True, more=more)
    sizes = torch.tensor(rows.sizes, device=p.tokens.device)[:, None]
    p.settled([min(rows.sizes), *[1] * (more + p.width)])
    cache = p.subject.new_cache(len(rows.tokens))
    logits = p.subject.run(rows.tokens, rows.positions, cache)
    later = []
    for i in range(more):
        later.append(p.subject.run(p.tokens.gather(1, sizes + i), sizes + i, cache))
    measured = rows.off(logits, torch.cat(later, 1))

    def cause() -> str:
        if p.failed & {"cached-steps", "padding-left"}:
            return "as without padding or without a cache: see cached-steps and padding-left"
        return (
            "padding leaks through the cache: later steps see the padding of a left-padded prompt, or rows of unequal "
            "length go on at the wrong positions"
        )

    return p.judge(measured, cause)


def rollback(p: Probe) -> Finding:
    tokens, half = p.tokens[:2], p.prefill
    p.settled([half, *[1] * (p.width - half)])
    cache = p.subject.new_cache(len(tokens))
    where = p.positions(tokens)
    got = [p.subject.run(tokens[:, :half], where[:, :half], cache)]
    draft = slice(half, half + 2)
    p.subject.run(p.changed(tokens[:, draft]), where[:, draft], cache)
    p.subject.crop(cache, half)
    got += [p.subject.run(tokens[:, t : t + 1], where[:, t : t + 1], cache) for t in range(half, p.width)]
    measured = gap(torch.cat(got, 1), p.full(tokens))

    def cause() -> str:
        if "cached-steps" in p.failed:
            return "as without going back: see cached-steps"
        return "tokens that were taken back are still seen, or the cache goes on at the wrong place after crop"

    return p.judge(measured, cause)


def fork(p: Probe) -> Finding:
    tokens, half = p.tokens[:2], p.prefill
    p.settled([half, *[1] * (p.width - half)])
    other = torch.cat([tokens[:, :half], p.changed(tokens[:, half:])], 1)
    where, run = p.positions(tokens), p.subject.run
    first = p.subject.new_cache(len(tokens))
    run(tokens[:, :half], where[:, :half], first)
    second = p.subject.fork(first)
    got, got_other = [], []
    for t in range(half, p.width):
        got.append(run(tokens[:, t : t + 1], where[:, t : t + 1], first))
        got_other.append(run(other[:, t : t + 1], where[:, t : t + 1], second))
    one = gap(torch.cat(got, 1), p.full(tokens)[:, half:])
    two = gap(torch.cat(got_other, 1), p.full(other)[:, half:])

    def cause() -> str:
        if "cached-steps" in p.failed:
            return "as without a fork: see cached-steps"
        return "two branches of one cache see each other: the fork shares memory that both write"

    return p.judge(max(one, two), cause)


# ---- frequencies that depend on the length


def length_dependent_rope(p: Probe) -> Finding:
    facts = p.subject.facts
    if facts.original is None:
        raise NotApplicable("no part of it says that it depends on the length of the context")
    if "cached-steps" in p.failed:
        raise NotApplicable("cached-steps fails already, so this cannot be told apart")
    past = PAST if facts.limit is None else min(PAST, facts.limit - facts.original)
    if past < 1:
        raise NotApplicable(f"it has {facts.limit} positions, none past the original length of {facts.original}")
    start = max(0, facts.original - BEFORE)
    draw = torch.Generator().manual_seed(start)
    width = facts.original - start + past
    tokens = torch.randint(facts.vocab, (1, width), generator=draw).to(p.tokens.device)
    where, length = p.positions(tokens, start), start + width
    part = slice(0, width - past // 2)

    def whole(piece: slice) -> Tensor:
        return p.subject.run(tokens[:, piece], where[:, piece], length=length)

    # a short pass in between: transformers keeps the frequencies of the longest pass until one comes
    p.full(p.tokens)
    fresh = whole(part)
    full = whole(slice(None))
    stale = gap(whole(part), fresh)
    p.full(p.tokens)
    stepped = p.feed(tokens, [facts.original - start, *[1] * past], start, length=length)
    p.full(p.tokens)
    measured = gap(stepped[:, -1], full[:, -1])

    def cause() -> str:
        why = (
            "keys cached before the context grew keep the frequencies of a shorter length, so step-by-step decoding "
            f"equals no full pass at all: {past} tokens past {facts.original} it is {measured:.2g} off in the logits"
        )
        also = f"a full pass after a longer one keeps the frequencies of that one, and is {stale:.2g} off"
        return "; ".join([why] * (measured > p.tolerance) + [also] * (stale > p.tolerance))

    finding = p.judge(max(measured, stale), cause)
    return _growth(p, finding) if isinstance(p.subject, OwnModel) and finding.status == "ok" else finding


def _growth(p: Probe, fixed: Finding) -> Finding:
    """Past the declared length our own models refuse; ``grow`` computes again and counts it."""
    assert isinstance(p.subject, OwnModel)
    model, original = p.subject.model, p.subject.facts.original
    assert original is not None
    fixed = replace(fixed, note="frequencies are fixed by the declared length")
    if model.encoder is not None or original > GROWN_MOST:
        return fixed
    draw = torch.Generator().manual_seed(original)
    tokens = torch.randint(model.spec.vocab, (1, original + 3), generator=draw).to(p.tokens.device)
    cache = model.new_cache(1, length=original)
    model(tokens[:, :original], cache=cache)
    try:
        model(tokens[:, original : original + 1], cache=cache)
    except LengthExceeded:
        grown = model.grow(cache, tokens[:, :original], length=2 * original + 3)
        stepped = torch.cat([model(tokens[:, t : t + 1], cache=grown) for t in range(original, original + 3)], 1)
        measured = gap(stepped, model(tokens, length=2 * original + 3)[:, original:])
        note = f"{fixed.note}; growing past it computed {grown.recomputed} tokens again"
        worst = max(measured, fixed.measured or 0.0)
        return p.judge(worst, lambda: "a grown cache is not what a full pass at the new length gives", note)
    return Finding("failed", fixed.measured, fixed.tolerance, "a step past the declared length was not refused")


# ---- for information


def positions_honoured(p: Probe) -> Finding:
    if not p.subject.facts.reads_positions:
        return Finding("info", note="positions cannot be given: it counts them itself")
    usual = p.full(p.tokens)
    silent = gap(p.subject.run(p.tokens, None), usual)
    without = "" if silent <= p.tolerance else f"; without positions it gives something else, {silent:.1e} off"
    if not p.shift:
        return Finding("info", note=f"there is no room to move positions{without}")
    moved = gap(p.full(p.tokens, p.shift), usual)
    stretched = p.positions(p.tokens).clone()
    stretched[:, -1] += p.shift
    pulled = gap(p.subject.run(p.tokens, stretched)[:, -1], usual[:, -1])
    if moved > p.tolerance:
        kind = f"absolute: moving all positions by {p.shift} changes the logits"
    elif pulled > p.tolerance:
        kind = f"relative: moving all positions by {p.shift} changes nothing, moving one does"
    else:
        kind = "ignored: the positions that are given change nothing"
    return Finding("info", moved, None, kind + without)


LAWS = (
    Law("repeatable", "The same input twice gives the same output.", repeatable),
    Law("causal", "A change to a later token changes no earlier logits.", causal),
    Law("rows-independent", "A batch equals its rows alone.", rows_independent),
    Law("padding-left", "A batch padded on the left equals its rows alone.", padding_left),
    Law("padding-right", "A batch padded on the right equals its rows alone.", padding_right),
    Law("cached-steps", "A prefill and then one token at a time equals one full pass.", cached_steps),
    Law("cached-chunks", "A prefill in chunks equals one full pass.", cached_chunks),
    Law("padding-cached", "A left-padded prompt, continued step by step, equals its rows alone.", padding_cached),
    Law("rollback", "Tokens that were taken back leave no trace.", rollback),
    Law("fork", "Two branches of one cache equal two full passes.", fork),
    Law("window-exact", "The last token sees exactly as far back as the windows say.", window_exact),
    Law("length-dependent-rope", "Decoding past the original length equals one full pass.", length_dependent_rope),
    Law("positions-honoured", "What positions do when they are given.", positions_honoured),
)
