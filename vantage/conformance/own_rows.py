"""The rows that only our own models can be asked: they show their parts, their kernels and their documents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vantage.conformance.adapters import OwnModel
from vantage.conformance.differences import Runs, wrong_kernel
from vantage.conformance.fault import Fault, layers_in_words
from vantage.conformance.own_attention import wrong_attention
from vantage.conformance.probe import NOT_FINITE, Finding, Probe, failure, gap
from vantage.conformance.ragged import Ragged
from vantage.conformance.reads import parts_that_read, wrong_reading
from vantage.conformance.subject import NotApplicable
from vantage.conformance.trace import DOCUMENT, PassTrace
from vantage.errors import Refused, VantageError
from vantage.model.part_errors import described
from vantage.spec.attention import attentions
from vantage.spec.masks import Mask
from vantage.spec.positions import Positions

PARTS, FORMULA = "positions-not-slots", "attention-formula"


def own(p: Probe) -> OwnModel:
    if (subject := own_or_none(p)) is None:
        raise NotApplicable("only for Vantage's own models: others cannot be looked into")
    return subject


def own_or_none(p: Probe) -> OwnModel | None:
    """The subject, where it is a model of Vantage, which one can see inside."""
    return p.subject if isinstance(p.subject, OwnModel) else None


# ---- parts


def positions_not_slots(p: Probe) -> Finding:
    model = own(p).model
    faults: list[Fault] = []
    for part in parts_that_read(model):
        if (fault := wrong_reading(model, part)) is not None:
            faults.append(fault)
    if not faults:
        return Finding("ok")
    first = faults[0]
    twin = first.name.replace("of queries", "of keys")
    if twin != first.name and any(fault.name == twin for fault in faults):
        first = Fault(first.name.replace("of queries", "of queries and keys"), first.where, first.shows, first.look)
    return failure(first, None, None)


def attention_formula(p: Probe) -> Finding:
    subject = own(p)
    relative = max(p.relative, 1e-5) if p.dtype != torch.float64 else p.relative
    passes: list[tuple[str, PassTrace]] = []
    for mode, run in _modes(p, subject):
        with subject.tracing() as tracer, contextlib.suppress(NotApplicable, VantageError):
            run()
        passes += [(mode, trace) for trace in tracer.passes]
    if not any(trace.attends for _, trace in passes):
        raise NotApplicable(
            "its attention computes by itself, without ctx.attend: scale, softmax and heads are not seen"
        )
    error, fault = wrong_kernel(passes, relative)
    fault = fault or wrong_attention(subject.model, passes, relative)
    if fault is not None:
        return failure(fault, error, relative, "of the output")
    return Finding("ok", error, relative, unit="of the output")


def _modes(p: Probe, subject: OwnModel) -> list[tuple[str, Callable[[], Any]]]:
    left, right = (Ragged.of(p, left=side) for side in (True, False))
    return [
        ("a full pass", lambda: p.full(p.tokens)),
        ("a batch padded on the left", lambda: subject.run(left.tokens, left.positions)),
        ("a batch padded on the right", lambda: subject.run(right.tokens, right.positions)),
        ("a packed row", lambda: subject.packed(p.tokens, _documents(p)[0])),
        ("cached steps", lambda: p.steps(p.tokens[:2])),
        ("chunks after a filled cache", lambda: p.feed(p.tokens[:2], p.chunk_sizes())),
    ]


# ---- documents


def packed(p: Probe) -> Finding:
    subject = own(p)
    masks = [layer.mask for layer in subject.model.spec.layers]
    apart = [_reads_documents(mask) for mask in masks]
    if not all(apart):
        which = layers_in_words(i for i, yes in enumerate(apart) if not yes)
        raise NotApplicable(f"the mask of {which} does not read documents: they see each other by design")
    where, lengths = _documents(p)
    try:
        logits = subject.packed(p.tokens, where)
    except Refused as why:
        raise NotApplicable(str(why)) from why
    errors = []
    for b, row in enumerate(lengths):
        start = 0
        for n in row:
            alone = p.full(p.tokens[b : b + 1, start : start + n])[0]
            errors.append(gap(logits[b, start : start + n], alone))
            start += n

    def cause() -> Fault:
        if (fault := known(p) or p.earlier("causal", "rows-independent")) is not None:
            return fault
        with subject.tracing() as tracer:
            for b, row in enumerate(lengths):
                start = 0
                for n in row:
                    subject.row(b + DOCUMENT * start)
                    p.full(p.tokens[b : b + 1, start : start + n])
                    start += n
        right = tracer.passes
        with subject.tracing() as tracer:
            subject.packed(p.tokens, where)
        runs = Runs(subject.model, "a packed row", right, tracer.passes, p.relative, cached=False)
        return (
            _read_order(p, subject, where, logits)
            or runs.explain()
            or Fault("a packed document is not that document alone", "", f"{max(errors):.1e} off")
        )

    return p.judge(max(errors), cause)


def _read_order(p: Probe, subject: OwnModel, where: Positions, logits: Tensor) -> Fault | None:
    """Whether positions that do not restart give the same: then something reads order in the place of pos."""
    if gap(p.full(p.tokens, p.shift), p.full(p.tokens)) <= p.tolerance:
        return None  # a relative encoding: where a document begins does not matter
    on = Positions.of(torch.where(where.filled, where.order, -1), order=where.order, segment=where.segment)
    if gap(subject.packed(p.tokens, on), logits) > p.tolerance:
        return None
    name = "positions do not restart in a document: order is read for pos"
    shows = "documents at positions that run on through the row give the same logits"
    return Fault(name, "a packed row", shows, "pos.order in a part: encodings read pos.pos, masks read order")


def _documents(p: Probe) -> tuple[Positions, list[list[int]]]:
    third = max(1, p.width // 3)
    lengths = [[third, p.width - third], [p.width], [p.width - third - 1, third + 1]]
    return Positions.packed(lengths), lengths


def _reads_documents(mask: Mask) -> bool:
    """Whether it shows something else once tokens are of several documents."""
    documents = Positions.packed([[2, 2, 2]])
    one = Positions.of(documents.order)
    shown = [mask(*where.against(where).places()).expand(1, 1, 6, 6) for where in (one, documents)]
    return not torch.equal(*shown)


# ---- why another row failed


def known(p: Probe) -> Fault | None:
    """The fault of a part or a kernel that was found already: other rows fail because of it."""
    return p.failed.get(PARTS) or p.failed.get(FORMULA)


def explain_inside(
    p: Probe,
    mode: str,
    wrong: Callable[[], Any],
    *,
    alone: Sequence[Tensor] | None = None,
    cached: bool = False,
    taken_back: bool = False,
) -> Fault | None:
    """Where inside the model ``wrong`` parts from each row alone; ``None``: nobody can see, or nothing parts."""
    if (fault := known(p)) is not None:
        return fault
    if (subject := own_or_none(p)) is None:
        return None
    with subject.tracing() as tracer:
        for b, row in enumerate(p.tokens.split(1) if alone is None else alone):
            subject.row(b)
            p.full(row)
    right = tracer.passes
    with subject.tracing() as tracer:
        wrong()
    return Runs(subject.model, mode, right, tracer.passes, p.relative, cached, taken_back).explain()


def where_inside(p: Probe, usual: Tensor, other: Tensor, *, before: int) -> str:
    """The first module through which tokens from ``before`` on reach earlier ones; empty: nobody can see."""
    if (subject := own_or_none(p)) is None:
        return ""
    traces = []
    for tokens in (usual, other):
        with subject.tracing() as tracer:
            p.full(tokens)
        traces.append([trace.before(before) for trace in tracer.passes])
    return Runs(subject.model, "a full pass", traces[0], traces[1], p.relative, cached=False).first_module() or ""


def not_finite(p: Probe) -> Fault:
    """The first module that makes something that is not a number of numbers."""
    if (subject := own_or_none(p)) is None:
        return Fault(NOT_FINITE)
    with subject.tracing() as tracer:
        p.full(p.tokens)
    for trace in tracer.passes:
        for call in trace.calls:
            if bool(call.output.isfinite().all()) or not (call.inputs is None or bool(call.inputs.isfinite().all())):
                continue
            who = described(subject.model, call.module) or type(call.module).__name__
            what = "not a number" if bool(call.output.isnan().any()) else "infinite"
            part = _not_finite_part(trace, call.name) if attentions(call.module) else None
            return Fault(
                f"{part or who} gives what is {what}", call.name, f"its input is finite; {NOT_FINITE}", "its forward()"
            )
    return Fault(NOT_FINITE)


def _not_finite_part(trace: Any, name: str) -> str | None:
    """Inside an attention: the queries, the keys, or the bias."""
    layer = int(name.split(".")[1]) if name.startswith("blocks.") else -1
    for at, _, attend in trace.attends:
        if at != layer:
            continue
        for what, tensor in (("the q/k transform of queries", attend.q), ("the q/k transform of keys", attend.view.k)):
            if not bool(tensor.isfinite().all()):
                return what
        if not bool(attend.out.isfinite().all()):
            return "the kernel, or the score bias"
    return None
