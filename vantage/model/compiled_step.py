"""A step with a cache under ``torch.compile``: what changes from step to step stays outside of the graph.

A cache's numbers (how many tokens it holds, where the next one goes) would be guards, and every step would be compiled
anew. So the step is opened outside: the ledgers place it, and hand in tensors. The graph has one dynamic size, that of
what is seen. Whatever the graph is not for (a prompt, a model that runs whole steps, states) runs as it does without a
compiler, and is done when ``open_step`` returns. Imported by a compiler's first step alone, since it needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast, final

import torch
import torch._dynamo
from torch import Tensor

from vantage.cache import ModelCache
from vantage.cache.codecs import Codec, StreamShape
from vantage.cache.placed import PlacedCache, PlacedStep
from vantage.spec.parts import Context
from vantage.spec.positions import Known, Positions

COMPILED = "compiled"  # how tokens were computed, in a cache's counts
BOUND = 4096  # the host's knowledge of the highest position is rounded up to a multiple of this


Function = TypeVar("Function", bound=Callable[..., object])


def outside(function: Function) -> Function:
    """What a compiler does not look into."""
    return cast(Function, torch.compiler.disable(function))


@final
@dataclass(frozen=True, eq=False)
class PlacedLayer:
    buffers: list[Tensor]
    codec: Codec
    streams: tuple[StreamShape, ...]
    ledger: int  # which of the placed steps is its own


@final
@dataclass(frozen=True, eq=False)
class OpenStep:
    """A pass that a cache has begun."""

    pos: Tensor  # (B, 1)
    top: int  # no position is higher
    same_rows: bool
    length: int | None
    ledgers: list[PlacedStep]
    layers: list[PlacedLayer]

    def run(self, model: Any, tokens_B1: Tensor) -> Tensor:
        """The logits (B, 1, V). This is what is compiled."""
        known = Known(None, None, (0, self.top), None, empty=False, same_rows=self.same_rows)
        pos = Positions(self.pos, self.pos, None, known, self.length)
        views = [ledger.view_pos(self.top, self.length) for ledger in self.ledgers]
        moves = [ledger.moves() for ledger in self.ledgers]
        caches = [
            PlacedCache(layer.buffers, layer.codec, layer.streams, *moves[layer.ledger], views[layer.ledger])
            for layer in self.layers
        ]
        ctx: Context = model.placed_context(pos, caches)
        return model.head(model.run(model.embed(tokens_B1, pos, None), ctx))


def compiled_logits(model: Any, tokens: Tensor, cache: ModelCache, **inputs: Any) -> Tensor:
    """With a cache under a compiler, which sees what is computed of a step and nothing of where it stands."""
    step = open_step(model, tokens, cache, **inputs)
    if isinstance(step, Tensor):
        return step
    logits = step.run(model, tokens)
    close_step(cache)
    return logits


@outside
def open_step(model: Any, tokens: Tensor, cache: ModelCache, **inputs: Any) -> Tensor | OpenStep:
    """The logits, where this pass is not one for a graph; else the step, begun."""
    plain = all(inputs[name] is None for name in ("mask", "source", "types", "images"))
    if not plain or tokens.dim() != 2 or tokens.shape[1] != 1 or torch.is_grad_enabled() or not _able(cache):
        return model(tokens, cache=cache, **inputs)
    if (logits := model.step_on_gpu(tokens, inputs["positions"], cache, inputs["length"])) is not None:
        return logits
    model.embed.tokens.check(tokens)
    pos = model.place(tokens, inputs["positions"], cache, None, inputs["length"])
    if (top := _top(model, pos)) is None:
        return model(tokens, cache=cache, **{**inputs, "positions": pos})
    cache.begin(pos, unwatched=True)
    try:
        x = model.embed(tokens, pos, None)
        hidden = model.whole_steps.hidden(model, x, pos, cache)
        step = _placed(pos, top, cache) if hidden is None else None
        if step is not None:
            return step
        hidden = model.run(x, model.context(pos, cache)) if hidden is None else hidden
    except BaseException:
        cache.abandon()
        raise
    cache.commit()
    logits = model.whole_steps.logits(hidden)
    return model.head(hidden) if logits is None else logits


@outside
def close_step(cache: ModelCache) -> None:
    cache.commit()


def _able(cache: ModelCache) -> bool:
    """Whether all that the cache keeps are keys, values and streams, of which it holds some."""
    return not cache.cross and not cache.states and cache.ahead is None and cache.ledgers[0].holding


def _top(model: Any, pos: Positions) -> int | None:
    """A round number that no position of the next steps exceeds. ``None``: these are not for a graph: unequal for masks
    and encodings, or past the last one there is, which is refused in words."""
    known = pos.known
    if known.pos is None or known.empty or pos.segment is not None or pos.pos is not pos.order:
        return None
    limits = [n for n in (model.max_positions, pos.length) if n is not None]
    top = min((known.pos[1] // BOUND + 1) * BOUND, *limits) if limits else (known.pos[1] // BOUND + 1) * BOUND
    return top - 1 if known.pos[1] < top else None


def _placed(pos: Positions, top: int, cache: ModelCache) -> OpenStep | None:
    """The step with tensors for places; ``None``: some ledger says more than that."""
    steps = [ledger.place(pos) for ledger in cache.ledgers]
    placed = [one for step in steps if (one := PlacedStep.of(step)) is not None and one.pos.shape[1] > 1]
    if len(placed) < len(steps):
        return None
    number = {id(ledger): i for i, ledger in enumerate(cache.ledgers)}
    for layer in cache.layers:
        i, store = number[id(layer.ledger)], layer.store
        store.reserve(steps[i].places)
        if any(_equal_by_chance(buffer) for buffer in placed[i].shown(steps[i], store.tensors)):
            return None
    layers = []
    for layer in cache.layers:
        i, store = number[id(layer.ledger)], layer.store
        shown = placed[i].shown(steps[i], store.enter(steps[i], pos.shape[0], COMPILED))
        for buffer in shown:
            torch._dynamo.maybe_mark_dynamic(buffer, buffer.dim() - 2)
        layers.append(PlacedLayer(shown, store.codec, store.streams, i))
    for one in placed:
        torch._dynamo.maybe_mark_dynamic(one.pos, 1)
        torch._dynamo.maybe_mark_dynamic(one.order, 1)
        if one.table is not None:
            torch._dynamo.maybe_mark_dynamic(one.table, 1)
    return OpenStep(pos.pos, top, pos.known.same_rows, pos.length, placed, layers)


def _equal_by_chance(shown: Tensor) -> bool:
    """Whether numbers of a view that have nothing to do with each other are the same: where it begins, how far its rows
    and heads lie apart, how many places it has. A compiler takes that for a rule, and compiles once more when it no
    longer holds; such a step runs without it. They are few: a row that is exactly full, rows of one block each."""
    places, begins = shown.shape[-2], shown.storage_offset()
    full = places * shown.stride(-2)
    apart = [stride for stride, n in zip(shown.stride()[:-2], shown.shape[:-2], strict=True) if n > 1]
    return full in apart or (begins > 1 and begins in (places, full, *apart)) or places in apart
