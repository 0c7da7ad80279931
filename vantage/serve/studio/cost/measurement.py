"""Generating with a cache and without one, side by side: keys projected, counted, and time, measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.errors import Refused
from vantage.figures import Figure, Line, Lines
from vantage.generation.cached_sequence import CachedSequence
from vantage.model import Model
from vantage.serve.studio.positions.token_move import fitting

PROMPT = "Once upon a time"
SECONDS = 90.0  # after which no further token is measured
MOST = 512


def measured(model: Model, tokens: int, seconds: float = SECONDS) -> Iterator[tuple[str, dict[str, Any]]]:
    """A ``point`` for each token, then ``done``. Times and projections are those of all tokens so far.

    Projections are keys that one layer projected, as its cache counted them. Without a cache every token is read
    anew, into a cache that is thrown away, which is how the model runs a whole pass.
    """
    if model.kind != "decoder":
        raise Refused("this is measured on a decoder: the model is none, choose one that generates from a text")
    text = fitting(model, PROMPT, MOST, tokens)
    points: list[dict[str, Any]] = []
    kept = CachedSequence(model, _cache(model, len(text) + tokens))
    new, spent, anew, same, began = text, [0.0, 0.0], 0, 0, time.perf_counter()
    _logits(CachedSequence(model, _cache(model, len(text))), text)  # whatever a first pass sets up is not measured
    for n in range(1, tokens + 1):
        start = time.perf_counter()
        logits = _logits(kept, new)
        middle = time.perf_counter()
        again = CachedSequence(model, _cache(model, len(kept.tokens)))
        without = _logits(again, list(kept.tokens))
        end = time.perf_counter()
        spent = [spent[0] + middle - start, spent[1] + end - middle]
        anew += _projected(again.cache)
        new = [int(logits.argmax())]
        same += new == [int(without.argmax())]
        points.append(
            {
                "n": n,
                "length": len(kept.tokens),
                "cached": {"ms": 1e3 * spent[0], "projections": _projected(kept.cache)},
                "uncached": {"ms": 1e3 * spent[1], "projections": anew},
            }
        )
        yield "point", points[-1]
        if end - began > seconds:
            break
    text_said = model.tokenizer.decode(kept.tokens[len(text) :] + new)
    yield (
        "done",
        {"figures": [_figure(points)], "same": same, "tokens": len(points), "asked": tokens, "text": text_said},
    )


@torch.inference_mode()
def _logits(row: CachedSequence, new: Sequence[int]) -> Tensor:
    return row.feed(new)[-1]


def _cache(model: Model, tokens: int) -> ModelCache:
    original = model.spec.original_length
    return model.new_cache(capacity=tokens, length=None if original is None else max(original, tokens))


def _projected(cache: ModelCache) -> int:
    return max(layer.store.written for layer in cache.layers)


def _figure(points: Sequence[dict[str, Any]]) -> Figure:
    n = [point["n"] for point in points]

    def panel(title: str, what: str, label: str) -> Lines:
        lines = tuple(
            Line(name, n, [point[key][what] for point in points])
            for name, key in (("with a cache", "cached"), ("without", "uncached"))
        )
        return Lines(title, "tokens generated", label, lines)

    caption = (
        "All tokens so far: keys that a layer projected, and milliseconds. Without a cache each text is read anew."
    )
    return Figure("measured", caption, (panel("keys projected", "projections", "keys"), panel("time", "ms", "ms")))
