"""Ablation: what a prediction loses without a head, a layer or a position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from vantage.errors import BadInput, unknown
from vantage.inspect.capture import Progress
from vantage.inspect.select import Numbers, numbers
from vantage.interventions.activations import activations
from vantage.interventions.edits import Edit
from vantage.interventions.sweeps import BaseRun, Sweep, check_kind, sweep
from vantage.interventions.trace import LIMIT, trace
from vantage.model import Model

METHODS = ("zero", "mean", "resample")


def ablate(
    model: Model,
    text: Any,
    *,
    activation: str = "heads",
    by: str | None = None,
    how: str = "zero",
    reference: Iterable[Any] | None = None,
    seed: int = 0,
    target: Any = None,
    against: Any = None,
    position: int = -1,
    layers: Numbers = None,
    positions: Numbers = None,
    source: Any = None,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Sweep:
    """One head, or what a layer adds at one position, at a time: replaced by something that says nothing of this text.

    ``how``: "zero"; "mean", the activation's mean over all tokens of the ``reference`` texts; "resample", for each
    token the activation of one of their tokens, drawn by ``seed``. Without reference texts, those of the text itself.
    ``activation``, ``by`` and what is measured are as in ``patch``; without a target, it is the token that the model
    would write. An effect is what the ablation changes.
    """
    of, by = check_kind(model, activation, by)
    base, replacement = _prepared(
        model, text, [one.name for one in of.values()], how, reference, seed, source, position, limit
    )
    measure = base.target(target, against)
    chosen = [n for n in numbers(layers, len(model.blocks), "layer") if n in of]
    where = numbers(positions, base.tokens.shape[1], "position")
    by, cells, values = sweep(
        base, activation, replacement, measure, by=by, layers=chosen, positions=where, progress=progress
    )
    labels = tuple(f"{n} {base.labels[n]!r}" if by == "positions" else str(n) for n in cells)
    title = f"{how} ablation of {activation} by {by}"
    return Sweep(title, activation, by, measure.name, tuple(chosen), cells, labels, values, base.measured(measure))


def ablation(
    model: Model,
    activation: str,
    *,
    how: str = "zero",
    heads: Any = None,
    positions: Any = None,
    reference: Iterable[Any] | None = None,
    limit: int = LIMIT,
) -> list[Edit]:
    """The same as edits, for ``vt.trace`` and ``vt.tracing``: of an activation by its full name, ``*`` for every layer.

    "resample" needs a text to draw for, and is ``ablate``'s alone.
    """
    from vantage.interventions.activations import chosen

    names = list(chosen(model, activation))
    if how == "zero":
        return [Edit(name, 0.0, heads=heads, positions=positions) for name in names]
    if how != "mean" or reference is None:
        raise BadInput(f"how={how!r}: give 'zero', or 'mean' with reference= texts")
    pools = _pools(model, names, reference, limit)
    means = {name: pools[name].mean(0) for name in names}
    some = slice(None) if heads is None else [heads] if isinstance(heads, int) else list(heads)
    by_heads = {name: activations(model)[name].heads for name in names}
    return [
        Edit(name, means[name][some] if by_heads[name] else means[name], heads=heads, positions=positions)
        for name in names
    ]


def _prepared(
    model: Model, text: Any, names: list[str], how: str, reference: Iterable[Any] | None, seed: int,
    source: Any, position: int, limit: int,
) -> tuple[BaseRun, Any]:  # fmt: skip
    """The text as the model reads it, and a function from an activation's name to what takes its place."""
    if how not in METHODS:
        raise BadInput(unknown("way to ablate", how, METHODS))
    dims = activations(model)[names[0]].dims
    if how != "zero" and "key" in dims:
        raise BadInput(f"how={how!r}: {names[0]} has no mean over texts of other lengths; use 'zero'")
    base = BaseRun.of(
        model, text, [] if how == "zero" and reference is None else names, source=source, position=position, limit=limit
    )
    if how == "zero":
        return base, lambda name: torch.zeros((), dtype=model.dtype, device=model.device).reshape((1,) * len(dims))
    pools = (
        {name: base.values[name][0] for name in names} if reference is None else _pools(model, names, reference, limit)
    )
    if how == "mean":
        return base, lambda name: pools[name].mean(0, keepdim=True)[None]
    drawn = torch.randint(
        len(pools[names[0]]), (base.tokens.shape[1],), generator=torch.Generator().manual_seed(seed)
    ).to(model.device)
    return base, lambda name: pools[name][drawn][None]


def _pools(model: Model, names: list[str], reference: Iterable[Any], limit: int) -> dict[str, Tensor]:
    """Every token of the reference texts, (tokens, …), by the activation's name."""
    texts = [reference] if isinstance(reference, str) else list(reference)
    if not texts:
        raise BadInput("reference=: give at least one text")
    seen = [trace(model, text, read=names, limit=limit // len(texts)) for text in texts]
    return {name: torch.cat([one[name].flatten(0, 1) for one in seen]) for name in names}
