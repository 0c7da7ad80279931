"""How far back the last token really sees, against what the windows of all layers say together."""

from __future__ import annotations

import torch

from vantage.conformance.adapters import NotApplicable
from vantage.conformance.probe import Finding, Probe, gap

MOST = 96  # tokens of the longest row that is tried: it is run once for each of its tokens
CLEAR = 16  # an influence this many times above rounding does not fade to nothing one token further back


def window_exact(p: Probe) -> Finding:
    """With L layers of window n the last token depends on the token L·(n-1) back, and on nothing further back."""
    facts = p.subject.facts
    if not facts.windows and not facts.odd_window:
        raise NotApplicable("no window is declared")
    if facts.odd_window:
        raise NotApplicable(f"{facts.odd_window} is no plain window, so its edge moves with the position")
    if None in facts.windows:
        raise NotApplicable("some layers have no window, so the last token sees everything through them")
    windows = [n for n in facts.windows if n is not None]
    reach = sum(n - 1 for n in windows)
    influence = _dense(p, reach, len(windows))
    seen = [d for d, effect in enumerate(influence) if effect > p.floor]
    furthest = max(seen, default=0)
    if furthest == reach:
        return Finding("ok", furthest, reach, unit="tokens")
    if furthest < reach and influence[furthest] < CLEAR * p.floor:
        raise NotApplicable(
            f"what lies {furthest} back is already down to {influence[furthest]:.0e}, near rounding, "
            f"so the edge at {reach} cannot be seen: check it in float64, or with fewer layers"
        )
    cause = _cause(furthest, reach, len(windows), len(influence) - 1)
    return Finding("failed", furthest, reach, cause, unit="tokens")


def _dense(p: Probe, reach: int, layers: int) -> list[float]:
    """How much the last logits change with the token d places back, for d = 0, 1, …"""
    limit = p.subject.facts.limit
    width = reach + layers + 2  # room to see that every layer is one too wide
    width = width if limit is None else min(width, limit)
    if width < reach + 2:
        raise NotApplicable(f"its windows reach {reach} back together, and there are only {limit} positions")
    if width > MOST:
        raise NotApplicable(
            f"its windows reach {reach} back together, further than the {MOST} tokens tried here: "
            "check a copy with smaller windows"
        )
    draw = torch.Generator().manual_seed(width)
    vocab = p.subject.facts.vocab
    tokens = torch.randint(vocab, (1, width), generator=draw).to(p.tokens.device)
    usual = p.full(tokens)[:, -1]
    effects = []
    for back in range(width):
        other = tokens.clone()
        other[:, -1 - back] = p.changed(other[:, -1 - back])
        effects.append(gap(p.full(other)[:, -1], usual))
    return effects


def _cause(furthest: int, reach: int, layers: int, tried: int) -> str:
    off = furthest - reach
    which = "too wide" if off > 0 else "too narrow"
    least = "at least " if furthest == tried else ""
    if abs(off) == layers:
        each = f"the window of every layer is one {which}" if layers > 1 else f"the window is one {which}"
    elif abs(off) == 1:
        each = f"the window of one layer is one {which}"
    else:
        each = f"the windows of all layers together are {least}{abs(off)} {which}"
    size = "window off by one" if abs(off) in (1, layers) and not least else "window of the wrong size"
    return f"{size}: {each} (the last token sees {least}{furthest} back; {reach} is declared)"
