"""The rows that only our own models can be asked: they show their parts and their kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vantage.conformance.adapters import OwnModel
from vantage.conformance.differences import Runs, wrong_kernel
from vantage.conformance.fault import Fault
from vantage.conformance.own_attention import wrong_attention
from vantage.conformance.probe import NOT_FINITE, Finding, Probe, failure
from vantage.conformance.ragged import Documents, Ragged
from vantage.conformance.reads import parts_that_read, wrong_reading
from vantage.conformance.subject import NotApplicable
from vantage.conformance.trace import PassTrace
from vantage.errors import VantageError
from vantage.model.part_errors import described
from vantage.spec.attention import attentions

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
        ("a packed row", lambda: subject.packed(p.tokens, Documents.of(p).where)),
        ("cached steps", lambda: p.steps(p.tokens[:2])),
        ("chunks after a filled cache", lambda: p.feed(p.tokens[:2], p.chunk_sizes())),
    ]


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
