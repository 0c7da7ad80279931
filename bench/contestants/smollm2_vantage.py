"""A GGUF file with our model, SmolLM2's or the larger one: a decode step, a prompt, or a step of several requests."""

import sys
from pathlib import Path
from time import perf_counter

import torch

import vantage as vt

sys.path.insert(0, str(Path(__file__).parent))
from busy import busy_processes
from large_file import large_file
from smollm2_text import text

STEPS = 24


def setup(
    task: str = "decode",
    context: int = 512,
    rows: int = 1,
    dtype: str = "auto",
    large: bool = False,
    busy: int = 0,
    threads: int = 0,
    fast: bool = False,
) -> None:
    """``busy``: other processes that keep a core busy each, while this one is measured. ``fast``: prompts in 8 bits."""
    global model, tokens, what, n, count, others, own_threads
    own_threads = threads
    model = vt.load(large_file() if large else "smollm2", dtype=dtype, fast=fast)
    what, n, count, others = task, context, rows, busy
    tokens = torch.tensor([model.tokenizer.encode(text())[: context + rows * 8]])


@torch.inference_mode()
def round() -> dict[str, list[float]]:
    if own_threads:  # the worker sets those of the bench before each round
        torch.set_num_threads(own_threads)
    if what == "prefill":
        cache = model.new_cache(capacity=n)
        start = perf_counter()
        hidden = model.hidden(tokens[:, :n], cache=cache)
        model.head(hidden[:, -1:]).argmax(-1).tolist()
        return {"seconds": [perf_counter() - start]}
    pool = model.new_cache(kind="paged")
    caches = [pool.fresh(1) for _ in range(count)]
    for i, cache in enumerate(caches):  # requests of unequal length
        model.hidden(tokens[:, : n + i * 8], cache=cache)
    cache = caches[0] if count == 1 else type(pool).join(caches)
    token = tokens[0, :count, None].clone()
    with busy_processes(others):
        start = perf_counter()
        for _ in range(STEPS):
            token = model(token, cache=cache)[:, -1:].argmax(-1)
            token.tolist()
        seconds = (perf_counter() - start) / STEPS
    cache.free()
    return {"seconds": [seconds]}
