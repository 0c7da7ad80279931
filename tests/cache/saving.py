"""Files of saved caches: written, forged and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.cache.helpers import Chunk, Token, chunk_of, run
from vantage.cache import ModelCache
from vantage.cache.saved import FORMAT, Fingerprint, _digest, read_cache, save_cache
from vantage.errors import VantageError
from vantage.spec.parts import View

Forgery = Callable[[dict[str, Any], dict[str, Tensor]], object]
MINE = Fingerprint("tiny", "0123456789abcdef")


def forged(path: Path, change: Forgery) -> None:
    """The file with another header or other tensors, and a digest that agrees: what a careful forger would write."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["header"])
    tensors = load_file(path)
    change(header, tensors)
    text = json.dumps(header)
    said = {"format": FORMAT, "header": text, "digest": _digest(text, tensors.__getitem__, tensors)}
    save_file(tensors, path, said)


def again(cache: ModelCache, folder: Path, change: Forgery | None = None) -> ModelCache:
    """The cache from its file, which a forger may have had in hand."""
    path = folder / "cache"
    save_cache(cache, path, fingerprint=MINE)
    if change is not None:
        forged(path, change)
    return read_cache(path).cache


# ---- what a caller sees


def seen(view: View) -> list[object]:
    filled = view.pos.filled[:, None, :, None]
    segment = None if view.pos.segment is None else view.pos.segment.tolist()
    shown = [t.where(filled, 0.0).tolist() for t in (view.k, view.v)]
    return [view.pos.known, view.pos.pos.tolist(), view.pos.order.tolist(), segment, *shown]


def told(cache: ModelCache) -> list[object]:
    """All that a cache says of itself. A pool is written without its free blocks, so its size is not asked for."""
    upto = cache.next_positions
    size = 0 if cache.ledgers[0].pooled else cache.bytes
    views = [seen(layer.view()) for layer in cache.layers if layer.holding]
    return [cache.holds().layers, cache.tokens, upto.order.tolist(), upto.host, cache.freeable, size, views]


def next_chunk(cache: ModelCache, width: int, uid: int) -> Chunk:
    """So many tokens more for every row, in a document of their own where there are documents."""
    ledger = cache.ledgers[0]
    segmented = ledger.holding and ledger.look().view_pos.segment is not None
    rows = [
        [Token(end + i, end + i, end if segmented else None, uid + 10 * b + i) for i in range(width)]
        for b, end in enumerate(cache.next_positions.order.tolist())
    ]
    return chunk_of(rows, segmented=segmented)


def story(cache: ModelCache) -> list[object]:
    """What happens to a cache from here on: steps of several widths, a step back, other rows, a fork."""

    def grow(width: int, uid: int, to: ModelCache = cache) -> list[object]:
        return [seen(view) for view in run(to, next_chunk(to, width, uid))]

    def back() -> None:
        cache.crop((cache.next_positions.order - 1).clamp_min(0).tolist())

    acts = [
        lambda: grow(1, 500),
        lambda: grow(3, 600),
        back,
        lambda: cache.reorder(range(cache.batch)[::-1]),
        lambda: grow(2, 700),
        lambda: grow(1, 800, cache.fork()),
    ]
    out: list[object] = [told(cache)]
    for act in acts:
        try:
            out += [act(), told(cache)]
        except VantageError as e:  # then the other must refuse it too, in the same words
            out.append(str(e))
    return out
