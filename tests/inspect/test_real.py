"""On SmolLM2: native whole steps, packed weights, and the budget of a long capture."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.inspect.models import TEXT, published
from vantage.inspect import capturing, decompose

BUDGET = """
import json, re, sys, time
from pathlib import Path
import torch
import vantage as vt

model = vt.load("smollm2")
tokens = (model.tokenizer.encode(sys.argv[2]) * 100)[: int(sys.argv[1])]
row = torch.tensor([tokens])
with torch.inference_mode():
    model.hidden(row[:, :64])
    start = time.perf_counter()
    model.hidden(row)
    plain = time.perf_counter() - start
start = time.perf_counter()
seen = vt.capture(model, tokens, keep="top32")
took = time.perf_counter() - start
# ru_maxrss would be inherited from the process that started this one
status = Path("/proc/self/status").read_text()
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024
print(json.dumps({"plain": plain, "capture": took, "peak": peak, "heads": sum(len(seen.heads(n)) for n in range(30))}))
"""


def test_native_steps_stand_aside_and_compute_the_same() -> None:
    of = published("smollm2", dtype="auto")
    x = torch.tensor([of.tokenizer.encode(TEXT)])
    with torch.inference_mode():
        native = of(x)
        with capturing(of, keep="top8", verify=True) as seen:
            watched = of(x)
    assert seen.error is not None
    assert seen.error < 1e-4
    assert len(seen.sites) == 30
    # thirty layers of float32 in another order of sums: a thousandth of what logits differ by
    assert (watched - native).abs().max() < 0.005 * native.std()
    assert (watched.argmax(-1) == native.argmax(-1)).float().mean() > 0.98


def test_the_parts_of_a_real_score_add_up() -> None:
    parts = decompose(published("smollm2", dtype="auto"), TEXT, layer=16, queries=slice(-8, None))
    assert parts.error < 1e-5
    assert parts.frequency is not None
    assert len(parts.frequency) == 32


@pytest.mark.slow
def test_the_budget_of_a_long_capture() -> None:
    """Memory is held to the issue's number; time is told, since a busy machine has no say in what is right."""
    published("smollm2", dtype="auto")
    run = [sys.executable, "-c", BUDGET, "4096", TEXT]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    said = json.loads(done.stdout)
    print(said)
    assert said["heads"] == 270
    assert said["peak"] < 1.5e9
