"""How far back the last token really sees, against what the windows of all layers say together."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vantage.conformance.fault import Fault
from vantage.conformance.own_rows import known
from vantage.conformance.probe import Finding, Probe, failure, gap
from vantage.conformance.subject import NotApplicable

MAX_TOKENS = 512  # tokens of the longest row that is tried
MIN_SIGNAL_RATIO = 16  # an influence this many times above rounding does not fade to nothing one token further back


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
    row = _row(p, reach, len(windows))
    furthest, clear = _furthest(p, row, reach - len(windows) - 2)
    if furthest <= reach and not clear and (copy := p.subject.doubled()) is not None:
        precise = replace(p, subject=copy, dtype=torch.float64)
        furthest, clear = _furthest(precise, row, reach - len(windows) - 2)
    if furthest == reach:
        return Finding("ok", furthest, reach, unit="tokens")
    if furthest < reach and not clear:
        raise NotApplicable(
            f"what lies {furthest} back is already down to rounding, so the edge at {reach} cannot be seen: "
            "check a copy with fewer layers, smaller windows or in float64"
        )
    fault = known(p) or _cause(furthest, reach, len(windows), row.shape[1] - 1)
    return failure(fault, furthest, reach, "tokens")


def _row(p: Probe, reach: int, layers: int) -> Tensor:
    """Tokens (1, T), long enough to see that every layer is one too wide."""
    limit, width = p.subject.facts.limit, reach + layers + 2
    width = width if limit is None else min(width, limit)
    if width < reach + 2:
        raise NotApplicable(f"its windows reach {reach} back together, and there are only {limit} positions")
    if width > MAX_TOKENS:
        raise NotApplicable(
            f"its windows reach {reach} back together, further than the {MAX_TOKENS} tokens tried here: "
            "check a copy with smaller windows"
        )
    draw = torch.Generator().manual_seed(width)
    return torch.randint(p.subject.facts.vocab, (1, width), generator=draw).to(p.tokens.device)


def _furthest(p: Probe, tokens: Tensor, near: int) -> tuple[int, bool]:
    """How far back a token changes the last logits, and whether clearly so. One by one, below ``near`` by halving."""
    usual = p.full(tokens)[:, -1]

    def effect(back: int) -> float:
        other = tokens.clone()
        other[:, -1 - back] = p.changed(other[:, -1 - back])
        return gap(p.full(other)[:, -1], usual)

    for back in range(tokens.shape[1] - 1, max(0, near), -1):
        if (size := effect(back)) > p.floor:
            return back, size > MIN_SIGNAL_RATIO * p.floor
    low, high = 0, max(0, near) + 1  # seen at low, not seen at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if effect(middle) > p.floor else (low, middle)
    return low, effect(low) > MIN_SIGNAL_RATIO * p.floor


def _cause(furthest: int, reach: int, layers: int, tried: int) -> Fault:
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
    shows = f"the last token sees {least}{furthest} back; {reach} is declared"
    return Fault(f"{size}: {each}", "", shows, "< and <= in the window: n keys, the token itself included")
