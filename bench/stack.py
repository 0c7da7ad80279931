"""Sixty small runs of a study (six encodings, ten seeds), as ``vantage compare`` trains them, and one after another.

On a GPU the seeds of an encoding are one stack and several processes share the GPU; on a CPU every core takes one run
at a time. Examples are made once for all encodings, as in a study, and by each run for itself one after another.
Where torch finds a GPU it is measured, or else this machine's cores: ``BENCH_DEVICE=cpu`` says the cores all the same.
The ratio of the table is "as a study" over "one after another": 0.067 is fifteen times the throughput.
"""

import os
import shutil

from bench.harness import Bench, Contestant, Goal

DEVICE = os.environ.get("BENCH_DEVICE") or ("cuda" if shutil.which("nvidia-smi") else "cpu")
SEEDS = 10
STEPS, WORKERS = (60, 6) if DEVICE == "cuda" else (20, 2)
WAYS = ("as a study", "one after another")


def contestants() -> tuple[Contestant, ...]:
    how = {"device": DEVICE, "seeds": SEEDS, "steps": STEPS, "workers": WORKERS}
    return tuple(Contestant(way, "stack_runs.py", params={**how, "together": way == WAYS[0]}) for way in WAYS)


BENCH = Bench(
    name="stack",
    title=f"60 runs of 2 layers of width 64, ordering to length 20, {STEPS} steps, on {DEVICE}",
    contestants=contestants(),
    goals=(Goal(*WAYS, 1 / 15 if DEVICE == "cuda" else 1 / 1.5),),
    rounds=3,
    warmup=1,
)
