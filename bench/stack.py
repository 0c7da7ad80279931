"""Sixty small runs of a study, as ``vantage compare`` trains them, against the same runs one after another.

On a GPU the runs are one stack, on a CPU every core takes one run at a time; both make their examples as in a study.
Where torch finds a GPU it is measured, or else this machine's cores: ``BENCH_DEVICE=cpu`` says the cores all the same.
The ratio of the table is "together" over "one after another": 0.067 is fifteen times the throughput.
"""

import os
import shutil

from bench.harness import Bench, Contestant, Goal

DEVICE = os.environ.get("BENCH_DEVICE") or ("cuda" if shutil.which("nvidia-smi") else "cpu")
RUNS = 60
STEPS = 5 if DEVICE == "cuda" else 4


def contestants() -> tuple[Contestant, ...]:
    ways = ("together", "one after another")
    how = {"device": DEVICE, "runs": RUNS, "steps": STEPS}
    return tuple(Contestant(way, "stack_runs.py", params={**how, "together": way == ways[0]}) for way in ways)


BENCH = Bench(
    name="stack",
    title=f"{RUNS} runs of 2 layers of width 64, ordering to length 20, {STEPS} steps, on {DEVICE}",
    contestants=contestants(),
    goals=(Goal("together", "one after another", 1 / 15 if DEVICE == "cuda" else 1 / 1.5),),
    rounds=5,
    warmup=1,
)
