"""The row of frequencies that depend on the length: dynamic NTK and LongRoPE."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vantage.conformance.adapters import OwnModel
from vantage.conformance.fault import Fault
from vantage.conformance.own_rows import own_or_none
from vantage.conformance.probe import Finding, Probe, failure, gap
from vantage.conformance.subject import NotApplicable
from vantage.errors import LengthExceeded

BEFORE, PAST = 8, 16  # tokens before and past the length at which a rule changes
GROWN_MOST = 128  # a longer original length is not recomputed for a row


def length_dependent_rope(p: Probe) -> Finding:
    facts = p.subject.facts
    if facts.original is None:
        raise NotApplicable("no part depends on the context length")
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

    def cause() -> Fault:
        name = "keys cached before the context grew keep the frequencies of a shorter length"
        shows = (
            "step-by-step decoding equals no full pass at all: "
            f"{past} tokens past {facts.original} it is {measured:.2g} off in the logits"
        )
        also = f"a full pass after a longer one keeps the frequencies of that one, and is {stale:.2g} off"
        if measured <= p.tolerance:
            return Fault(also)
        return Fault(name, shows="; ".join([shows] + [also] * (stale > p.tolerance)))

    finding = p.judge(max(measured, stale), cause)
    subject = own_or_none(p)
    return _growth(p, subject, finding) if subject is not None and finding.status == "ok" else finding


def _growth(p: Probe, subject: OwnModel, fixed: Finding) -> Finding:
    """Past the declared length our own models refuse; ``grow`` computes again and counts it."""
    model, original = subject.model, subject.facts.original
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
        return p.judge(worst, lambda: Fault("a grown cache is not what a full pass at the new length gives"), note)
    return failure(Fault("a step past the declared length was not refused"), fixed.measured, fixed.tolerance)
