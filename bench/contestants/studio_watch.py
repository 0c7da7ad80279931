"""Steps of one row, as the studio's chat takes them, with attention watched or not."""

import contextlib
import sys
from pathlib import Path
from time import perf_counter

import torch

import vantage as vt
from vantage.generation.cached_sequence import CachedSequence
from vantage.serve.studio.chat.watch import AttentionWatch

sys.path.insert(0, str(Path(__file__).parent))
from smollm2_text import text

TOKENS, STEPS, LAYER = 500, 16, 12


def setup(how: str) -> None:
    global model, ids, watch
    model = vt.load("smollm2", dtype="auto")
    ids = list(model.tokenizer.encode(text()))[:TOKENS]
    watch = None if how == "none" else AttentionWatch(model, LAYER if how == "one" else None)


@torch.inference_mode()
def round() -> dict[str, list[float]]:
    row = CachedSequence(model, model.new_cache(capacity=TOKENS + STEPS + 1))
    token = int(row.feed(ids)[-1].argmax())
    start = perf_counter()
    with contextlib.nullcontext() if watch is None else watch.on():
        for _ in range(STEPS):
            token = int(row.feed([token])[-1].argmax())
            if watch is not None:
                assert watch.take()
    return {"seconds": [(perf_counter() - start) / STEPS]}
