"""Greedy decoding with our decoder: seconds per step, after a prompt that is not counted."""

import sys
from pathlib import Path
from time import perf_counter

import torch

import vantage as vt

sys.path.insert(0, str(Path(__file__).parent))
from shapes import HEADS, HIDDEN, LAYERS, VOCAB, WIDTH

CHUNK = 512  # the prompt goes in by chunks, so that a long one needs no large mask


def setup(context: int = 256, steps: int = 16, kind: str = "contiguous", window: int | None = None) -> None:
    global model, cache, token, count, goes_back
    ffn = vt.FeedForward(HIDDEN)
    spec = vt.decoder(vocab=VOCAB, width=WIDTH, layers=LAYERS, heads=HEADS, ffn=ffn, window=window)
    model, count = vt.build(spec).eval(), steps
    goes_back = kind != "ring"  # a ring has let go of what left its window
    cache = model.new_cache(kind=kind, capacity=context + steps)
    prompt = torch.randint(VOCAB, (1, context), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for part in prompt.split(CHUNK, 1):
            hidden = model.hidden(part, cache=cache)
        token = model.head(hidden[:, -1:]).argmax(-1)


def round() -> dict[str, list[float]]:
    """Every round decodes the same steps again, from the same context where the cache can go back."""
    global token
    held = cache.tokens[0]
    first = token
    with torch.inference_mode():
        start = perf_counter()
        for _ in range(count):
            token = model(token, cache=cache)[:, -1:].argmax(-1)
        seconds = (perf_counter() - start) / count
        if goes_back:
            cache.crop(held)
            token = first
    return {"seconds": [seconds]}
