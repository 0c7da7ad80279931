"""K5: what a cache weighs, worked out and weighed."""

from __future__ import annotations

import torch

from vantage.figures import Bars, Figure, Line, Lines
from vantage.generation import Engine
from vantage.inspect import cost
from vantage.inspect.cache_bytes import CacheSettings, alternatives, cache_bytes, token_bytes
from vantage.inspect.cost import WINDOW
from vantage.model import Model, build, decoder
from vantage.spec.model import ModelSpec
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

WIDTH, HEADS, LAYERS, BLOCK = 32, 8, 2, 4
KINDS = ("contiguous", "ring", "paged", "quantised")
MIB = 2**20
# The shape of a model of seven thousand million parameters: nothing of it is made, its cost is worked out.
LARGE_WIDTH, LARGE_LAYERS, LARGE_HEADS = 4096, 32, 32


def run(values: Values, progress: Progress) -> Result:
    context, batch = int(values["context"]), int(values["batch"])
    worst, tried = 0, 0
    grid = [(kv, kind, b, n) for kv in (1, 2, 8) for kind in KINDS for b in (1, 3) for n in (16, 80)]
    for i, (kv, kind, rows, length) in enumerate(grid):
        progress(0.8 * i / len(grid), "weighing small caches")
        model = _model(kv, 8 if kind == "ring" else None)  # a ring keeps a window
        cache = model.new_cache(rows, kind=kind, capacity=length)
        allocated = sum(tensor.nbytes for layer in cache.layers for tensor in layer.store.tensors)
        calculated = cost(model, context=length, batch=rows, kind=kind).cache
        worst, tried = max(worst, abs(calculated - allocated)), tried + 1
    one = _held(_model(8), 8 * BLOCK)
    progress(0.9, "a large one")
    large = {kv: _bytes(kv, context, batch) for kv in (32, 8, 1)}
    twice, rows = _bytes(32, 2 * context, batch), _bytes(32, context, 2 * batch)
    room = CacheSettings(context, batch, torch.bfloat16)
    instead = alternatives(_large(32), room, min(WINDOW, context))
    token = sum(token_bytes(layer.attention.cache_shape(LARGE_WIDTH), room) for layer in _large(32).layers)
    numbers = [
        compared(f"calculator against allocated bytes, largest difference of {tried} caches", worst, 0),
        compared("bytes for twice the length, over bytes", twice / large[32], 2.0, within=1e-9),
        compared("bytes for twice the batch, over bytes", rows / large[32], 2.0, within=1e-9),
        compared("8 of 32 key/value heads: times smaller", large[32] / large[8], 4.0, within=1e-9),
        compared("1 of 32 key/value heads: times smaller", large[32] / large[1], 32.0, within=1e-9),
        compared(
            "held by the running engine, three times the tokens", _held(_model(8), 24 * BLOCK) / one, 3.0, within=1e-9
        ),
        compared("held by the running engine, three requests", _held(_model(8), 8 * BLOCK, 3) / one, 3.0, within=1e-9),
        compared(
            "held by the running engine, 1 of 8 heads: times smaller",
            one / _held(_model(1), 8 * BLOCK),
            8.0,
            within=1e-9,
        ),
        Number(f"MiB of {batch} × {context:,} tokens, 32 layers of 32 heads of 128, 16 bits", large[32] / MIB),
        Number("KiB that one more token takes there", token / 1024),
    ]
    progress(1.0, "done")
    words = TEXT.conclusion(tried=tried)
    return conclude(words, numbers, _figures(instead, context, batch))


def _model(kv_heads: int, window: int | None = None) -> Model:
    return build(decoder(vocab=5, width=WIDTH, layers=LAYERS, heads=HEADS, kv_heads=kv_heads, window=window)).eval()


def _large(kv_heads: int) -> ModelSpec:
    return decoder(vocab=32000, width=LARGE_WIDTH, layers=LARGE_LAYERS, heads=LARGE_HEADS, kv_heads=kv_heads)


def _bytes(kv_heads: int, context: int, batch: int) -> int:
    """The calculator behind ``cost``, in 16 bits."""
    return cache_bytes(_large(kv_heads), CacheSettings(context, batch, torch.bfloat16))


def _held(model: Model, tokens: int, requests: int = 1) -> int:
    """Bytes that the engine holds when each request has so many tokens in the cache."""
    engine = Engine(model, block=BLOCK, share_prefixes=False)
    for i in range(requests):
        engine.submit([1 + i % 4] * tokens, max_tokens=2)
    while engine.stats.prefilled < tokens * requests:
        engine.step()
    return engine.stats.bytes_held


def _figures(instead: dict[str, int], context: int, batch: int) -> list[Figure]:
    lengths = [context // 4, context // 2, 3 * context // 4, context]
    lines = tuple(
        Line(
            name,
            lengths,
            [_bytes(kv, n, batch) / MIB for n in lengths],
        )
        for name, kv in (("32 heads (MHA)", 32), ("8 heads (GQA)", 8), ("1 head (MQA)", 1))
    )
    kinds = tuple(instead)
    bars = Bars("By kind of attention", "MiB", kinds, (("bytes", [instead[kind] / MIB for kind in kinds]),))
    return [
        Figure(
            "memory",
            TEXT.caption("memory"),
            (Lines(f"{batch} row{'s' * (batch > 1)}, 16 bits a number", "tokens", "MiB", lines), bars),
        )
    ]


STUDY = TEXT.study(
    "K5",
    run,
    (
        TEXT.parameter("context", 8192, 256, 131072),
        TEXT.parameter("batch", 1, 1, 64),
    ),
    seconds=1.5,
)
