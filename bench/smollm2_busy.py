"""SmolLM2 beside a busy process for each core: how much slower a step gets, with all threads and with one."""

import os

from bench.harness import Bench, Contestant, Goal

CORES = os.cpu_count() or 1
# Seconds of them: the system moves processes between cores every tenth of one.
STEPS = {"context": 128, "steps": 400}

BENCH = Bench(
    name="smollm2_busy",
    title=f"Decode step of SmolLM2-135M (Q4_1) beside {CORES} busy processes on {CORES} cores",
    contestants=(
        Contestant("beside busy processes", "smollm2_vantage.py", params={**STEPS, "busy": CORES}),
        Contestant("alone", "smollm2_vantage.py", params=STEPS),
        Contestant("one thread, beside", "smollm2_vantage.py", params={**STEPS, "busy": CORES, "threads": 1}),
    ),
    goals=(
        Goal("beside busy processes", "alone", 2.5),
        Goal("beside busy processes", "alone", 2.2),
        Goal("beside busy processes", "one thread, beside", 1.0),
    ),
    rounds=8,
    warmup=1,
)
