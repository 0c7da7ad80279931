"""A GGUF file with our model, SmolLM2's or the larger one: a decode step, a prompt, or a step of several requests."""

import sys
from pathlib import Path
from time import perf_counter

import torch

import vantage as vt
from vantage.generation.engine import Engine
from vantage.generation.stops import Stop
from vantage.kernels.native.huge_pages import wait_for_huge_pages

sys.path.insert(0, str(Path(__file__).parent))
from busy import busy_processes
from large_file import large_file
from smollm2_text import text


def setup(
    task: str = "decode",
    context: int = 512,
    rows: int = 1,
    dtype: str = "auto",
    large: bool = False,
    busy: int = 0,
    threads: int = 0,
    fast: bool = False,
    steps: int = 24,
) -> None:
    """``busy``: other processes that keep a core busy each, while this one is measured. ``fast``: prompts in 8 bits."""
    global model, tokens, what, n, count, others, own_threads, most
    own_threads, most = threads, steps
    model = vt.load(large_file() if large else "smollm2", dtype=dtype, fast=fast)
    wait_for_huge_pages()  # it would be taken from who is measured first
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
    engine = Engine(model, share_prefixes=False)
    requests = [  # of unequal length
        engine.submit(tokens[0, : n + i * 8], max_tokens=3 * most, stop=Stop()) for i in range(count)
    ]
    while not all(request.outputs[0].picks for request in requests):
        engine.step()
    begun = engine.stats.generated
    with busy_processes(others):
        start = perf_counter()
        while engine.stats.generated < begun + most * count:
            engine.step()
        seconds = perf_counter() - start
    done = (engine.stats.generated - begun) / count
    for request in requests:
        engine.cancel(request)
    engine.step()
    return {"seconds": [seconds / done]}
