"""``vt.check``: the conformance rows on any model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import torch
from torch import nn

from vantage.checkpoints.transformers_model import is_transformers_model
from vantage.conformance.adapters import OwnModel, TransformersModel
from vantage.conformance.callables import callable_subject
from vantage.conformance.fault import Fault
from vantage.conformance.own_rows import not_finite
from vantage.conformance.probe import Finding, Probe, failure
from vantage.conformance.report import CheckRow, Report
from vantage.conformance.rows import LAWS, Law
from vantage.conformance.subject import NewCache, NotApplicable, Subject
from vantage.errors import BadInput
from vantage.model import Model


@torch.no_grad()
def check(
    model: Any,
    *,
    new_cache: NewCache | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    vocab: int | None = None,
    causal: bool | None = None,
    window: int | Sequence[int] | None = None,
    layers: int | None = None,
    max_length: int | None = None,
    original_length: int | None = None,
    pad: int | None = None,
    device: torch.device | str | None = None,
) -> Report:
    """Check that a model computes the same with a cache as without, in chunks, padded and packed.

    The model is one of Vantage, a transformers causal language model, or your own callable.

    A callable is ``f(tokens)``, ``f(tokens, positions)`` or ``f(tokens, positions, cache)`` and returns logits:
    tokens and positions are (B, T), a position of -1 is padding; logits (B, T, V); ``cache`` is ``None`` for a pass
    without one, else what ``new_cache(rows)`` returned, which is written in place. Checks that need an argument which
    a callable does not take are skipped, and the report says so. Describe it with: ``vocab``, where there are more
    logits than tokens; ``causal=False``; ``window`` (of each of ``layers``); ``max_length``, the positions it has;
    ``original_length``, past which its RoPE changes; ``pad``, the token that it takes for padding; its ``device``.
    ``new_cache`` also replaces the default cache of any other model.

    A failed check names the fault: what is wrong, where, the numbers that show it and what to look at.
    ``report.faults`` has each fault once.

    ``tolerance`` is a share of the largest logit; the default depends on the dtype. The model is run without
    gradients and in eval mode, and left in the mode it was in.

    >>> vt.check(lambda tokens: net(tokens))
    >>> vt.check(lambda tokens, positions, cache: net(tokens, positions, cache), new_cache=net.cache)
    """
    described = {
        "vocab": vocab,
        "causal": causal,
        "window": window,
        "layers": layers,
        "max_length": max_length,
        "original_length": original_length,
        "pad": pad,
        "device": device,
    }
    if tolerance is not None and not 0 <= tolerance < inf:
        raise BadInput(f"tolerance={tolerance}: give a share of the largest logit, 0 or more, or None")
    with _in_eval_mode(model) as was_training:
        subject = _subject(model, new_cache, described)
        probe = Probe.of(subject, tolerance, seed, _coarsest(model), was_training)
        probe.not_finite = not_finite
        rows = tuple(_run_all(probe))
    dtype = str(probe.dtype).removeprefix("torch.")
    return Report(subject.facts.name, dtype, str(subject.facts.device), probe.scale, probe.relative, rows)


def _subject(model: Any, new_cache: NewCache | None, described: dict[str, Any]) -> Subject:
    if isinstance(model, Model) or is_transformers_model(model):
        extra = [f"{name}=" for name, value in described.items() if value is not None]
        if extra:
            raise BadInput(f"{type(model).__name__} says these itself: leave out {', '.join(extra)}")
        return OwnModel(model, new_cache) if isinstance(model, Model) else TransformersModel(model, new_cache)
    if not callable(model):
        raise BadInput(
            f"{type(model).__name__} is neither a vantage.Model, a transformers model nor a callable "
            "f(tokens) -> logits, f(tokens, positions, cache) -> logits"
        )
    return callable_subject(model, new_cache, **described)


def _run_all(probe: Probe) -> Iterator[CheckRow]:
    for law in LAWS:
        if "repeatable" in probe.failed:
            finding = Finding("n/a", note="the same input gives different outputs, so nothing can be compared")
        else:
            finding = _run(law, probe)
        if finding.status == "failed":
            finding = _once(finding, probe)
            probe.failed[law.name] = finding.fault
        yield CheckRow(law.name, law.says, **vars(finding))


def _once(finding: Finding, probe: Probe) -> Finding:
    """A fault is told at length where it first shows; after that the row is named."""
    names = {fault.name: row for row, fault in reversed(probe.failed.items()) if fault is not None}
    if finding.fault is None or finding.fault.name not in names or not isfinite(finding.measured or 0.0):
        return finding
    return replace(finding, note=f"the same fault: see {names[finding.fault.name]}")


def _run(law: Law, probe: Probe) -> Finding:
    try:
        return law.run(probe)
    except NotApplicable as why:
        return Finding("n/a", note=str(why))
    except Exception as error:  # whatever somebody else's model raises is what this row found
        message = str(error).strip().split("\n")[0]
        if (first := next(iter(probe.failed.values()), None)) is not None:  # it may well have come of that
            return Finding("failed", inf, None, f"it raised {type(error).__name__}: {message}", fault=first)
        return failure(Fault(f"it raised {type(error).__name__}: {message}"), inf, None)


@contextlib.contextmanager
def _in_eval_mode(model: object) -> Iterator[bool]:
    """Whether the model was in training mode; every module is left as it was."""
    if not isinstance(model, nn.Module):
        yield False
        return
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield any(training for _, training in before)
    finally:
        for module, training in before:
            module.training = training


def _coarsest(model: object) -> torch.dtype | None:
    if not isinstance(model, nn.Module):
        return None
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)
