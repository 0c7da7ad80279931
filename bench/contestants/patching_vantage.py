"""One sweep of ``vantage.interventions.patch`` over two prompts of 30 tokens."""

import sys
from pathlib import Path
from time import perf_counter

import vantage as vt
from vantage.interventions import patch

sys.path.insert(0, str(Path(__file__).parent))
from patching_prompts import prompts


def setup() -> None:
    global model, clean, corrupted, target, against
    model = vt.load("smollm2")
    clean, corrupted, target, against = prompts(model.tokenizer.encode)


def round() -> dict[str, list[float]]:
    start = perf_counter()
    done = patch(model, clean, corrupted, target=target, against=against)
    assert done.values.shape == (30, 30)
    return {"seconds": [perf_counter() - start]}
