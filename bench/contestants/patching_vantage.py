"""One sweep of ``vantage.interventions.patch`` over two prompts of 30 tokens."""

import sys
from pathlib import Path
from time import perf_counter

import vantage as vt
from vantage.interventions import patch

sys.path.insert(0, str(Path(__file__).parent))
from patching_prompts import prompts


def setup(layers: list[int]) -> None:
    global model, clean, corrupted, target, against, chosen
    chosen = layers
    model = vt.load("smollm2")
    clean, corrupted, target, against = prompts(model.tokenizer.encode)


def round() -> dict[str, list[float]]:
    start = perf_counter()
    done = patch(model, clean, corrupted, target=target, against=against, layers=chosen)
    assert done.values.shape == (len(chosen), 30)
    return {"seconds": [perf_counter() - start]}
