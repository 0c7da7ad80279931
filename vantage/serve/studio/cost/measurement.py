"""Generating with a cache and without one, side by side: keys projected, counted, and time, measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.errors import Refused
from vantage.figures import Figure, Line, Lines
from vantage.generation.cached_sequence import CachedSequence
from vantage.model import Model
from vantage.serve.studio.cost.answers import MeasuredPoint, MeasuredTotal, Spent
from vantage.serve.studio.state import Event
from vantage.serve.studio.texts import encode_fitting

PROMPT = "Once upon a time"
SECONDS = 90.0  # after which no further token is measured
MAX_TOKENS = 512


def measure(model: Model, tokens: int, seconds: float = SECONDS) -> Iterator[Event]:
    """A ``point`` for each token, then ``done``. Times and projections are those of all tokens so far.

    Projections are keys that one layer projected, as its cache counted them. Without a cache every token is read
    anew, into a cache that is thrown away, which is how the model runs a whole pass.
    """
    if model.kind != "decoder":
        raise Refused("this is measured on a decoder: the model is none, choose one that generates from a text")
    prompt = encode_fitting(model, PROMPT, MAX_TOKENS, tokens)
    points: list[MeasuredPoint] = []
    cached = CachedSequence(model, _cache(model, len(prompt) + tokens))
    new, spent, anew, same, began = prompt, [0.0, 0.0], 0, 0, time.perf_counter()
    _logits(CachedSequence(model, _cache(model, len(prompt))), prompt)  # whatever a first pass sets up is not measured
    for n in range(1, tokens + 1):
        start = time.perf_counter()
        logits = _logits(cached, new)
        middle = time.perf_counter()
        again = CachedSequence(model, _cache(model, len(cached.tokens)))
        without = _logits(again, list(cached.tokens))
        end = time.perf_counter()
        spent = [spent[0] + middle - start, spent[1] + end - middle]
        anew += _projected(again.cache)
        new = [int(logits.argmax())]
        same += new == [int(without.argmax())]
        points.append(
            MeasuredPoint(
                n=n,
                length=len(cached.tokens),
                cached=Spent(ms=1e3 * spent[0], projections=_projected(cached.cache)),
                uncached=Spent(ms=1e3 * spent[1], projections=anew),
            )
        )
        yield "point", points[-1]
        if end - began > seconds:
            break
    text = model.tokenizer.decode(cached.tokens[len(prompt) :] + new)
    yield (
        "done",
        MeasuredTotal(figures=[_figure(points)], same=same, tokens=len(points), asked=tokens, text=text),
    )


@torch.inference_mode()
def _logits(row: CachedSequence, new: Sequence[int]) -> Tensor:
    return row.feed(new)[-1]


def _cache(model: Model, tokens: int) -> ModelCache:
    original = model.spec.original_length
    return model.new_cache(capacity=tokens, length=None if original is None else max(original, tokens))


def _projected(cache: ModelCache) -> int:
    return max(layer.store.written for layer in cache.layers)


def _figure(points: Sequence[MeasuredPoint]) -> Figure:
    n = [point.n for point in points]

    def panel(title: str, label: str, value: Callable[[Spent], float]) -> Lines:
        lines = (
            Line("with a cache", n, [value(point.cached) for point in points]),
            Line("without", n, [value(point.uncached) for point in points]),
        )
        return Lines(title, "tokens generated", label, lines)

    caption = (
        "Cumulative: keys projected per layer, and milliseconds. Without a cache each token recomputes the whole text."
    )
    keys = panel("keys projected", "keys", lambda spent: spent.projections)
    return Figure("measured", caption, (keys, panel("time", "ms", lambda spent: spent.ms)))
