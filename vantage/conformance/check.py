"""``vt.check``: the conformance rows on any model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import inf
from typing import Any, cast

import torch
from torch import nn

from vantage.checkpoints.transformers_model import is_transformers_model
from vantage.conformance.adapters import (
    CallableModel,
    NewCache,
    NotApplicable,
    OwnModel,
    Subject,
    TransformersModel,
    UserModel,
    callable_facts,
)
from vantage.conformance.probe import Finding, Probe
from vantage.conformance.report import CheckRow, Report
from vantage.conformance.rows import LAWS, Law
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
    device: torch.device | str | None = None,
) -> Report:
    """Run the conformance rows on a model: ours, a transformers causal language model, or your own callable.

    A callable is ``(tokens, positions, cache) -> logits``: tokens and positions (B, T), a position of -1 is
    padding; logits (B, T, V); ``cache`` is ``None`` for a pass without one, else what ``new_cache(rows)``
    returned, which is written in place. Of a callable say ``vocab``, and what else is true of it: ``causal=False``;
    ``window`` (of each of ``layers``); ``max_length``, the positions it has; ``original_length``, past which its
    RoPE changes; its ``device``. ``new_cache`` also replaces the default cache of any other model.

    ``tolerance`` is a share of the largest logit; the default depends on the dtype. The model is run without
    gradients and in eval mode, and left in the mode it was in.

    >>> vt.check(lambda tokens, positions, cache: net(tokens, positions, cache), vocab=100, new_cache=net.cache)
    """
    described = {
        "vocab": vocab,
        "causal": causal,
        "window": window,
        "layers": layers,
        "max_length": max_length,
        "original_length": original_length,
        "device": device,
    }
    subject = _subject(model, new_cache, described)
    if tolerance is not None and not 0 <= tolerance < inf:
        raise BadInput(f"tolerance={tolerance}: give a share of the largest logit, 0 or more, or None")
    with _in_eval_mode(model) as was_training:
        probe = Probe.of(subject, tolerance, seed, _coarsest(model), was_training)
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
            "(tokens, positions, cache) -> logits"
        )
    causal = described.pop("causal")
    facts = callable_facts(model, **described)
    return CallableModel(cast(UserModel, model), facts, new_cache, causal is not False)


def _run_all(probe: Probe) -> Iterator[CheckRow]:
    for law in LAWS:
        if "repeatable" in probe.failed:
            finding = Finding("n/a", note="the same input gives different outputs, so nothing can be compared")
        else:
            finding = _run(law, probe)
        if finding.status == "failed":
            probe.failed.add(law.name)
        yield CheckRow(law.name, law.says, **asdict(finding))


def _run(law: Law, probe: Probe) -> Finding:
    try:
        return law.run(probe)
    except NotApplicable as why:
        return Finding("n/a", note=str(why))
    except Exception as error:  # whatever somebody else's model raises is what this row found
        message = str(error).strip().split("\n")[0]
        return Finding("failed", inf, None, f"it raised {type(error).__name__}: {message}")


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
