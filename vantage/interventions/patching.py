"""Activation patching between two texts, in every place at once; and along one path from head to head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.inspect.capture import Progress
from vantage.inspect.select import Numbers, numbers
from vantage.interventions.activations import Activation, activations
from vantage.interventions.edits import Edit
from vantage.interventions.sweeps import BaseRun, Sweep, check_kind, sweep
from vantage.interventions.trace import LIMIT
from vantage.model import Model

Head = tuple[int, int]  # a layer and a head in it


def patch(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    activation: str = "residual_before",
    by: str | None = None,
    target: Any = None,
    against: Any = None,
    position: int = -1,
    layers: Numbers = None,
    positions: Numbers = None,
    source: Any = None,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Sweep:
    """The model reads ``corrupted``, with one activation at a time as it was when it read ``clean``.

    ``activation`` is a name without its layer: "residual_before", "attention", "feed_forward", "heads", "q", "weights",
    …; ``by`` "positions" or "heads" (what the activation has). Measured after the token at ``position``: the logit of
    ``target`` less that of ``against``, or the log-probability of the target alone; without a target, of the token that
    the clean text leads to. An effect of 1 brings the measure all the way to that of the clean text.
    """
    of, by = check_kind(model, activation, by)
    names = [one.name for one in of.values()]
    clean_run, base = _two_runs(model, clean, corrupted, names, source, position, limit)
    measure = clean_run.target(target, against)
    chosen = [n for n in numbers(layers, len(model.blocks), "layer") if n in of]
    where = numbers(positions, base.tokens.shape[1], "position")
    by, cells, values = sweep(
        base, activation, lambda name: clean_run.values[name], measure,
        by=by, layers=chosen, positions=where, progress=progress,
    )  # fmt: skip
    shown = base.labels if by == "positions" else ()
    labels = tuple(f"{n} {shown[n]!r}" if shown else str(n) for n in cells)
    return Sweep(
        f"patching {activation} by {by}", activation, by, measure.name, tuple(chosen), cells, labels, values,
        base.measured(measure), clean_run.measured(measure),
    )  # fmt: skip


def patch_path(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    receiver: Head,
    through: str = "q",
    layers: Numbers = None,
    target: Any = None,
    against: Any = None,
    position: int = -1,
    through_feed_forward: bool = False,
    source: Any = None,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Sweep:
    """The direct effect of every earlier head on one head's queries, keys or values (path patching, Wang et al. 2022).

    The model reads ``corrupted``. For each sender: its output is that of the clean text, every other head and every
    feed-forward layer between stays as it was (``through_feed_forward``: those are computed anew), and what then
    reaches ``through`` ("q", "k" or "v") of the ``receiver``, a layer and a head, is put into a second pass, which is
    measured as in ``patch``. Where several heads share keys and values, k and v are those of all of them.
    """
    of, _ = check_kind(model, "heads", "heads")
    layer, head, entry = _receiver(model, receiver, through, of)
    senders = [n for n in numbers(layers, len(model.blocks), "layer") if n in of and n < layer]
    if not senders:
        raise BadInput(f"no head of layers={layers!r} comes before layer {layer}: choose a later receiver")
    known = activations(model)
    kinds = ("heads",) if through_feed_forward else ("heads", "feed_forward")
    held = [name for n in range(layer) for kind in kinds if (name := f"layers.{n}.{kind}") in known]
    clean_run, base = _two_runs(model, clean, corrupted, held, source, position, limit)
    measure = clean_run.target(target, against)
    at = head * entry.heads // of[layer].heads
    cells = tuple(range(max(of[n].heads for n in senders)))
    values = torch.full((len(senders), len(cells)), float("nan"))
    for i, sender in enumerate(senders):
        count, sending = of[sender].heads, f"layers.{sender}.heads"
        sent = clean_run.values[sending]
        others = [Edit(name, base.values[name]) for name in held if int(name.split(".")[1]) >= sender]

        def send(some: range, sent: Tensor = sent, others: list[Edit] = others, sending: str = sending) -> list[Edit]:
            return [*others, *(Edit(sending, sent[:, :, h : h + 1], heads=h, rows=r) for r, h in enumerate(some))]

        arrived = base.rerun(sender, count, send, measure, read=[entry.name])[1][entry.name][:, :, at : at + 1]

        def receive(some: range, arrived: Tensor = arrived) -> list[Edit]:
            return [Edit(entry.name, arrived[some.start : some.stop], heads=at)]

        values[i, :count] = base.rerun(layer, count, receive, measure)[0].cpu()
        if progress is not None:
            progress(i + 1, len(senders))
    return Sweep(
        f"paths into {through} of head {layer}.{head}", "heads", "heads", measure.name, tuple(senders), cells,
        tuple(map(str, cells)), values, base.measured(measure), clean_run.measured(measure),
    )  # fmt: skip


def _receiver(model: Model, receiver: Head, through: str, of: dict[int, Activation]) -> tuple[int, int, Activation]:
    """Layer and head of a receiver, and the activation that a path ends in."""
    if not (isinstance(receiver, tuple) and len(receiver) == 2):
        raise BadInput(f"receiver={receiver!r}: give a layer and a head, as in (9, 4)")
    layer = numbers(receiver[0], len(model.blocks), "layer")[0]
    if through not in ("q", "k", "v"):
        raise BadInput(f"through={through!r}: give 'q', 'k' or 'v'")
    entry = activations(model).get(f"layers.{layer}.{through}")
    if entry is None or layer not in of:
        raise BadInput(f"layer {layer} has no {through} by name: a path cannot end there")
    return layer, numbers(receiver[1], of[layer].heads, "head", f" in layer {layer}")[0], entry


def _two_runs(
    model: Model, clean: Any, corrupted: Any, names: list[str], source: Any, position: int, limit: int
) -> tuple[BaseRun, BaseRun]:
    runs = [
        BaseRun.of(model, text, names, source=source, position=position, limit=limit) for text in (clean, corrupted)
    ]
    first, second = (run.tokens.shape[1] for run in runs)
    if first != second:
        raise BadInput(
            f"the clean text has {first} tokens and the corrupted one {second}: exchange words for others of as many"
        )
    return runs[0], runs[1]
