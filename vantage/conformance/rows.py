"""The rows of ``vt.check``: one law each, what it says, how it is measured and what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vantage.conformance.cached_rows import (
    cached_chunks,
    cached_counting,
    cached_steps,
    fork,
    padding_cached,
    rollback,
)
from vantage.conformance.diagnose import why_not_repeatable
from vantage.conformance.fault import Fault
from vantage.conformance.length_rope import length_dependent_rope
from vantage.conformance.own_rows import (
    FORMULA,
    PARTS,
    attention_formula,
    explain_inside,
    known,
    positions_not_slots,
    where_inside,
)
from vantage.conformance.packed_row import packed
from vantage.conformance.probe import Finding, Probe, gap, gaps
from vantage.conformance.ragged import Ragged
from vantage.conformance.subject import NotApplicable
from vantage.conformance.window import window_exact


@dataclass(frozen=True)
class Law:
    """A row before it is run."""

    name: str
    says: str
    run: Callable[[Probe], Finding]


def repeatable(p: Probe) -> Finding:
    first = p.full(p.tokens)
    again = gap(p.full(p.tokens), first)
    p.full(p.changed(p.tokens[:, : p.prefill]))  # another input in between
    later = gap(p.full(p.tokens), first)
    note = "it was in training mode; all rows are checked in eval mode" if p.was_training else ""
    return p.judge(max(again, later), lambda: why_not_repeatable(p, again, later), note)


def causal(p: Probe) -> Finding:
    cuts = [t for t in (1, p.prefill, p.width - 1) if p.subject.settled(t)]
    if not cuts:
        raise NotApplicable("its tokens see later ones by design")
    usual = p.full(p.tokens)
    reached = {}  # cut -> the difference at each place before it
    for t in cuts:
        other = torch.cat([p.tokens[:, :t], p.changed(p.tokens[:, t:])], 1)
        reached[t] = gaps(p.full(other)[:, :t], usual[:, :t])

    def cause() -> Fault:
        t = max(cuts)
        ahead = [i for i, error in enumerate(reached[t]) if not error <= p.tolerance]
        t = t if ahead else max(cuts, key=lambda t: max(reached[t]))
        first = next(i for i, error in enumerate(reached[t]) if not error <= p.tolerance)
        shows = f"a change from token {t} on changes token {first} by {reached[t][first]:.1e}"
        if (fault := known(p)) is not None:
            return fault
        where = where_inside(p, p.tokens, torch.cat([p.tokens[:, :t], p.changed(p.tokens[:, t:])], 1), before=t)
        if first == 0 and t > 1:
            return Fault("the causal mask is missing", where, shows, "the mask of every attention")
        layers = t - first
        through = "one layer is off by one" if layers == 1 else f"{layers} layers are off by one, or one by {layers}"
        return Fault("the causal mask is off by one or more", where, f"{shows}: {through}", "k <= q in the mask")

    return p.judge(max(max(errors) for errors in reached.values()), cause)


def rows_independent(p: Probe) -> Finding:
    together = p.full(p.tokens)
    measured = max(gap(together[b], p.full(p.tokens[b : b + 1])[0]) for b in range(len(together)))

    def cause() -> Fault:
        inside = explain_inside(p, "a batch of rows", lambda: p.full(p.tokens))
        name = "rows of a batch depend on each other"
        if inside is not None:
            return Fault(f"{name}: {inside.name}", inside.where, inside.shows, inside.look)
        other = torch.cat([p.tokens[:1], p.changed(p.tokens[1:])])
        moved = gap(p.full(other)[0], together[0])
        what = f"other neighbours change row 0 by {moved:.1e}" if moved > p.tolerance else "the number of rows matters"
        look = (
            "what is computed over the whole batch: a norm, a router's capacity, a mask or positions of the first row"
        )
        return Fault(name, "", what, look)

    return p.judge(measured, cause)


def shorter_row(p: Probe) -> Finding:
    if not p.subject.settled(p.prefill):
        raise NotApplicable("its tokens see later ones by design")
    half = p.prefill
    usual = p.full(p.tokens)[:, :half]
    measured = gap(p.full(p.tokens[:, :half]), usual)

    def cause() -> Fault:
        if (fault := known(p) or p.earlier("causal")) is not None:
            return fault
        name = "the length of a row changes its beginning"
        shows = f"the first {half} of {p.width} tokens are {measured:.1e} off what they are alone"
        return Fault(name, "", shows, "positions counted from the end, a scale or a norm over the length")

    return p.judge(measured, cause)


def padding_left(p: Probe) -> Finding:
    return _padding(p, left=True)


def padding_right(p: Probe) -> Finding:
    return _padding(p, left=False)


def _padding(p: Probe, *, left: bool) -> Finding:
    rows = Ragged.of(p, left=left)
    measured = rows.off(p.subject.run(rows.tokens, rows.positions))
    side = "left" if left else "right"

    def cause() -> Fault:
        inside = p.earlier("rows-independent", "causal") or explain_inside(
            p,
            f"a batch padded on the {side}",
            lambda: p.subject.run(rows.tokens, rows.positions),
            alone=[p.tokens[b : b + 1, :n] for b, n in enumerate(rows.sizes)],
        )
        return inside or _why_padding(p, rows, side, measured)

    return p.judge(measured, cause)


def _why_padding(p: Probe, rows: Ragged, side: str, measured: float) -> Fault:
    """Told apart by what stands in the padding, and by moving the rows to where the padding would put them."""
    filled = rows.positions >= 0
    usual = p.subject.run(rows.tokens, rows.positions)
    if p.subject.facts.pad is None:
        other = p.subject.run(torch.where(filled, rows.tokens, p.changed(rows.tokens)), rows.positions)
        leaked = gap(usual[filled], other[filled])
        if leaked > p.floor:
            shows = f"other tokens in the padding on the {side} change real ones by {leaked:.1e}"
            return Fault("padding is attended", "", shows, "the padding mask: real tokens must not see position -1")
    if side == "left" and _counted_from_padding(p, rows, usual):
        shows = f"a row padded by n on the left is {measured:.1e} off, and right if it is moved to position n"
        name = "padding shifts positions: they are counted from the padding"
        return Fault(
            name, "", shows, "slots put for positions: an arange over the columns, a cumsum that counts padding"
        )
    name = "a padded row is not the row alone, though what stands in the padding does not matter"
    look = "positions counted from the padding, or padding that takes a share of the weights"
    return Fault(name, "", f"{measured:.1e} off, padded on the {side}", look)


def _counted_from_padding(p: Probe, rows: Ragged, padded: torch.Tensor) -> bool:
    """Whether each padded row is the row alone, moved by its padding."""
    if not p.subject.facts.reads_positions or not p.shift:
        return False
    for b, n in enumerate(rows.sizes):
        start = rows.tokens.shape[1] - n
        if start <= p.shift and gap(padded[b, start:], p.full(p.tokens[b : b + 1, :n], start)[0]) > p.tolerance:
            return False
    return True


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
    Law("repeatable", "The same input gives the same output, whatever ran in between.", repeatable),
    Law(PARTS, "Every part is a function of positions, never of slots.", positions_not_slots),
    Law(FORMULA, "Every attention is what the formula gives.", attention_formula),
    Law("causal", "A change to a later token changes no earlier logits.", causal),
    Law("rows-independent", "A batch equals its rows alone.", rows_independent),
    Law("shorter-row", "A shorter row equals the beginning of a longer one.", shorter_row),
    Law("padding-left", "A batch padded on the left equals its rows alone.", padding_left),
    Law("padding-right", "A batch padded on the right equals its rows alone.", padding_right),
    Law("packed", "Documents packed into a row equal the documents alone.", packed),
    Law("cached-steps", "A prefill and then one token at a time equals one full pass.", cached_steps),
    Law("cached-chunks", "A prefill in chunks equals one full pass.", cached_chunks),
    Law("cached-counting", "So do steps whose positions are left to the cache.", cached_counting),
    Law("padding-cached", "A left-padded prompt, continued step by step, equals its rows alone.", padding_cached),
    Law("rollback", "Tokens that were taken back leave no trace.", rollback),
    Law("fork", "Two branches of one cache equal two full passes.", fork),
    Law("window-exact", "The last token sees exactly as far back as the windows say.", window_exact),
    Law("length-dependent-rope", "Decoding past the original length equals one full pass.", length_dependent_rope),
    Law("positions-honoured", "What positions do when they are given.", positions_honoured),
)
