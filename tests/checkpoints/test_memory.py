"""What loading takes: little more than the weights themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vantage.checkpoints.pull import place

PROGRAM = """
import sys, threading, time, torch
import vantage as vt, vantage.families

def anonymous():  # memory that is not a file's
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))

vantage.families.families()  # code is not weights
torch.ones(8, 8) @ torch.ones(8, 8)
before, peak, done = anonymous(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.0005)

thread = threading.Thread(target=watch)
thread.start()
model = vt.load("smollm2", dtype=sys.argv[1] if sys.argv[1] == "auto" else getattr(torch, sys.argv[1]))
done = True
thread.join()
weights = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
print((peak - before) / weights)
"""


@pytest.mark.slow
@pytest.mark.skipif(not place("smollm2").is_dir(), reason="smollm2 is not on this machine: vantage pull smollm2")
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_loading_takes_at_most_a_tenth_more_than_the_weights(dtype: str):
    # blocks that are freed go back at once: what malloc keeps for later is not what loading needs
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, dtype], capture_output=True, text=True, check=True, env=environment
    )
    assert float(done.stdout) < 1.1
