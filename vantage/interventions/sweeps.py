"""One intervention for every layer and position, or every layer and head, many at a time.

What stands before the edited layer is the same in all of them, so it is computed once: each batch begins at its layer,
with one row for each cell, and only the measured token goes through the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.figures.html import page_table
from vantage.inspect.capture import Progress
from vantage.inspect.select import read_source
from vantage.interventions.activations import Activation, activations
from vantage.interventions.edits import Edit
from vantage.interventions.targets import Target
from vantage.interventions.trace import LIMIT, trace, tracing
from vantage.model import Model
from vantage.spec.model import ModelSpec
from vantage.spec.parts import EncoderOutput

MAX_BATCH_TOKENS = 1024  # tokens of a batch
DIM = {"positions": "token", "heads": "head"}


@final
@dataclass(frozen=True, eq=False)
class BaseRun:
    """A text as a model read it."""

    model: Model
    tokens: Tensor  # (1, T)
    labels: tuple[str, ...]
    memory: EncoderOutput | None
    values: dict[str, Tensor]  # activations by name, (1, …)
    position: int  # of the token after which is measured

    @staticmethod
    def of(
        model: Model, text: Any, names: Sequence[str], *, source: Any = None, position: int = -1, limit: int = LIMIT
    ) -> BaseRun:
        """``names``: what is kept besides the residual stream."""
        if model.spec.head is None:
            raise BadInput("this model has no head: no token of its own can be measured")
        seen = trace(model, text, source=source, read=["layers.*.residual_before", "hidden", *names], limit=limit)
        if seen.tokens is None or len(seen.tokens) != 1:
            raise BadInput("give one text, or the tokens of one")
        count = seen.tokens.shape[1]
        if not -count <= position < count:
            raise BadInput(f"there is no position {position}: the text has {count} tokens")
        read = read_source(model, source)
        with torch.inference_mode():
            memory = None if read is None else model.encode(read)
        values = {name: seen[name] for name in seen.passes}
        return BaseRun(model, seen.tokens, seen.labels, memory, values, position % count)

    @property
    def logits(self) -> Tensor:
        """(V,): of the measured token."""
        with torch.inference_mode():
            return self.model.head(self.values["hidden"][:, self.position : self.position + 1])[0, 0]

    def target(self, target: Any, against: Any) -> Target:
        """What was asked for; without a target, the token that the model would write."""
        return Target.of(self.model, int(self.logits.argmax()) if target is None else target, against)

    def measured(self, target: Target) -> float:
        return float(target.measure(self.logits[None])[0])

    @torch.inference_mode()
    def rerun(
        self, layer: int, cells: int, edits: Callable[[range], Iterable[Edit]], target: Target, read: Sequence[str] = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(cells,): measured with the edits of each, all in this layer or later; and what is read. A row is a cell."""
        model, first = self.model, begin_at(self.model.spec, layer)
        start = self.values[f"layers.{first}.residual_before"]
        each = max(1, MAX_BATCH_TOKENS // start.shape[1])
        measured, kept = list[Tensor](), dict[str, list[Tensor]]()
        for low in range(0, cells, each):
            some = range(low, min(low + each, cells))
            memory = None if self.memory is None else _repeat(self.memory, len(some))
            with tracing(model, edits=edits(some), read=read) as seen:
                hidden = model.hidden_from(start.expand(len(some), -1, -1), first, source=memory)
            measured.append(target.measure(model.head(hidden[:, self.position : self.position + 1])[:, 0]))
            for name in read:
                kept.setdefault(name, []).append(seen[name])
        return torch.cat(measured), {name: torch.cat(some) for name, some in kept.items()}


def begin_at(spec: ModelSpec, layer: int) -> int:
    """The last layer from which a pass can begin that comes to this one: later ones may read an earlier one's keys."""
    sources = [later.source for later in spec.layers[layer:] if later.source is not None and later.source < layer]
    return begin_at(spec, min(sources)) if sources else layer


def _repeat(memory: EncoderOutput, rows: int) -> EncoderOutput:
    return EncoderOutput(memory.hidden.expand(rows, -1, -1), memory.pos.expand(rows))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """What one intervention does in every layer and at every position, or in every layer and head."""

    title: str
    activation: str
    by: str  # "positions" or "heads"
    measure: str  # in words
    layers: tuple[int, ...]
    cells: tuple[int, ...]  # positions or heads
    labels: tuple[str, ...]  # of the cells
    values: Tensor  # (layers, cells): measured under the intervention; nan where a layer has no such head
    before: float  # measured without it
    goal: float | None = None  # measured on the text that the values come from (patching)

    @property
    def effects(self) -> Tensor:
        """(layers, cells): what the intervention changes; of patching, as a share of the way to the other text."""
        change = self.values - self.before
        if self.goal is None:
            return change
        return change / (self.goal - self.before)

    def top(self, count: int = 10) -> list[tuple[int, int, float]]:
        """(layer, cell, effect) of the largest effects, of either sign."""
        flat = self.effects.flatten()
        order = flat.abs().nan_to_num(-1.0).argsort(descending=True)[:count].tolist()
        width = len(self.cells)
        return [(self.layers[n // width], self.cells[n % width], float(flat[n])) for n in order if flat[n].isfinite()]

    @property
    def header(self) -> list[str]:
        return ["layer", "position" if self.by == "positions" else "head", "measured", "effect"]

    def rows(self) -> list[list[Any]]:
        names = dict(zip(self.cells, self.labels, strict=True))
        at = {(layer, cell): (i, j) for i, layer in enumerate(self.layers) for j, cell in enumerate(self.cells)}
        return [
            [layer, names[cell], round(float(self.values[at[layer, cell]]), 4), round(effect, 4)]
            for layer, cell, effect in self.top(self.values.numel())
        ]

    def to_dict(self) -> dict[str, Any]:
        def numbers(table: Tensor) -> list[list[float | None]]:
            return [[None if math.isnan(n) else n for n in row] for row in table.tolist()]  # JSON has no nan

        return {
            "title": self.title,
            "activation": self.activation,
            "by": self.by,
            "measure": self.measure,
            "layers": list(self.layers),
            "cells": list(self.cells),
            "labels": list(self.labels),
            "before": self.before,
            "goal": self.goal,
            "values": numbers(self.values),
            "effects": numbers(self.effects),
        }

    def __repr__(self) -> str:
        goal = "" if self.goal is None else f", {self.goal:.3f} on the other text"
        return f"{self.title}: {self.measure}, {self.before:.3f} before{goal}"

    def _repr_html_(self) -> str:
        from vantage.interventions.plots import plot_sweep

        return page_table(repr(self), self.header, self.rows()[:50], plot_sweep(self))


def check_kind(model: Model, activation: str, by: str | None) -> tuple[dict[int, Activation], str]:
    """The layers that have this activation, and what the cells of a sweep over it are."""
    known = activations(model)
    suffix = f".{activation}"
    of = {
        int(name.split(".")[1]): one
        for name, one in known.items()
        if name.startswith("layers.") and name.endswith(suffix) and name.count(".") == 1 + suffix.count(".")
    }
    if not of:
        names = dict.fromkeys(name.partition(".")[2].partition(".")[2] for name in known if name.startswith("layers."))
        raise BadInput(f"no layer has {activation!r}: give one of {', '.join(names)}")
    dims = next(iter(of.values())).dims
    by = ("heads" if "head" in dims else "positions") if by is None else by
    if by not in DIM or DIM[by] not in dims:
        raise BadInput(f"by={by!r}: {activation} can be swept by {' or '.join(n for n, d in DIM.items() if d in dims)}")
    return of, by


def sweep(
    base: BaseRun,
    activation: str,
    replacement: Callable[[str], Tensor],
    target: Target,
    *,
    by: str | None = None,
    layers: Sequence[int],
    positions: Sequence[int],
    progress: Progress | None = None,
) -> tuple[str, tuple[int, ...], Tensor]:
    """What is measured with one cell replaced: by what, the cells, and (layers, cells).

    ``replacement``: from the name of an activation to what takes its place, in its own shape. Swept by heads, one head
    at all of ``positions``; by positions, one of those.
    """
    of, by = check_kind(base.model, activation, by)
    most = max(of[layer].heads for layer in layers) if by == "heads" else 0
    cells = tuple(range(most)) if by == "heads" else tuple(positions)
    values = torch.full((len(layers), len(cells)), float("nan"))
    for i, layer in enumerate(layers):
        one = of[layer]
        here = cells[: one.heads] if by == "heads" else cells
        new = replacement(one.name)

        def edits(some: range, one: Activation = one, here: tuple[int, ...] = here, new: Tensor = new) -> list[Edit]:
            wanted = [here[n] for n in some]
            return [Edit(one.name, lambda x: _put(x, new, one, by, wanted, positions))]

        values[i, : len(here)] = base.rerun(layer, len(here), edits, target)[0].cpu()
        if progress is not None:
            progress(i + 1, len(layers))
    return by, cells, values


def _put(
    x: Tensor, new: Tensor, activation: Activation, by: str, cells: Sequence[int], positions: Sequence[int]
) -> Tensor:
    """Row i with its cell i replaced."""
    token = activation.dims.index("token")
    rows = torch.arange(len(cells), device=x.device)
    if by == "positions":
        x, new = x.movedim(token, 1), new.to(x).movedim(token, 1)
        at = torch.tensor(cells, device=x.device)
        x[rows, at] = new.expand_as(x)[rows, at]
        return x.movedim(1, token)
    head = activation.dims.index("head")
    x, new = x.movedim((head, token), (1, 2)), new.to(x).movedim((head, token), (1, 2))
    at, where = torch.tensor(cells, device=x.device), torch.tensor(list(positions), device=x.device)
    x[rows[:, None], at[:, None], where] = new.expand_as(x)[rows[:, None], at[:, None], where]
    return x.movedim((1, 2), (head, token))
