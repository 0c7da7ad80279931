"""The row that packs documents: in every way in which a model's interface marks where a document begins."""

from __future__ import annotations

from torch import Tensor, nn

from vantage.conformance.differences import Runs
from vantage.conformance.fault import Fault
from vantage.conformance.leaks import mixing_module
from vantage.conformance.own_rows import known, own_or_none
from vantage.conformance.probe import Finding, Probe, gap
from vantage.conformance.ragged import Documents
from vantage.conformance.subject import NotApplicable
from vantage.conformance.trace import DOCUMENT
from vantage.spec.positions import Positions

NOT_ALONE = "a packed document is not that document alone"


def packed(p: Probe) -> Finding:
    documents = Documents.of(p)
    outputs: dict[str, Tensor] = {}
    notes: list[str] = []
    for way in p.subject.packings():
        try:
            outputs[way] = p.subject.packed(p.tokens, documents.where, way)
        except NotApplicable as why:
            notes.append(str(why))
    if not outputs:
        raise NotApplicable("; ".join(notes))
    errors = {way: documents.off(p, logits) for way, logits in outputs.items()}
    worst = max(errors, key=lambda way: errors[way])

    def cause() -> Fault:
        if (fault := known(p) or p.earlier("causal", "rows-independent")) is not None:
            return fault
        return (
            _explained_inside(p, documents, outputs[worst])
            or _seen_through(p, documents, worst, notes)
            or Fault(NOT_ALONE, "", f"{errors[worst]:.1e} off, documents marked by {worst}")
        )

    return p.judge(errors[worst], cause, "; ".join(notes))


# ---- our own models


def _explained_inside(p: Probe, documents: Documents, logits: Tensor) -> Fault | None:
    if (subject := own_or_none(p)) is None:
        return None
    with subject.tracing() as tracer:
        for b, start, document in documents.tokens:
            subject.row(b + DOCUMENT * start)
            p.full(document)
    right = tracer.passes
    with subject.tracing() as tracer:
        subject.packed(p.tokens, documents.where)
    runs = Runs(subject.model, "a packed row", right, tracer.passes, p.relative, cached=False)
    return _read_order(p, documents.where, logits) or runs.explain()


def _read_order(p: Probe, where: Positions, logits: Tensor) -> Fault | None:
    """Whether positions that do not restart give the same: then something reads order in the place of pos."""
    if gap(p.full(p.tokens, p.shift), p.full(p.tokens)) <= p.tolerance:
        return None  # a relative encoding: where a document begins does not matter
    on = Positions.of(where.order.where(where.filled, -1), order=where.order, segment=where.segment)
    (way,) = p.subject.packings()
    if gap(p.subject.packed(p.tokens, on, way), logits) > p.tolerance:
        return None
    name = "positions do not restart in a document: order is read for pos"
    shows = "documents at positions that run on through the row give the same logits"
    return Fault(name, "a packed row", shows, "pos.order in a part: encodings read pos.pos, masks read order")


# ---- models of others


def _seen_through(p: Probe, documents: Documents, way: str, notes: list[str]) -> Fault | None:
    """The module through which one document reaches the next; ``None``: none does."""
    start = documents.tokens[1][1]
    other = p.tokens.clone()
    other[0, :start] = p.changed(p.tokens[:1, :start])[0]

    def run(tokens: Tensor) -> Tensor:
        return p.subject.packed(tokens[:1], documents.first_row, way)

    usual = run(p.tokens)
    changed = gap(usual[0, start:], run(other)[0, start:])
    if changed <= p.floor:
        return None
    model = p.subject.model
    where = ""
    if isinstance(model, nn.Module):
        later = slice(start, p.width)
        where = mixing_module(model, lambda: run(p.tokens), lambda: run(other), later, p.relative)
    shown = f"other tokens in the document before change it by {changed:.1e}, documents marked by {way}"
    look = "a state or a convolution that runs on over the border, or a mask that does not read documents"
    return Fault("a packed document sees the one before it", where, "; ".join((shown, *notes)), look)
