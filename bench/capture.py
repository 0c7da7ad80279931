"""Capturing every head of a long text: time against the plain pass, and the memory of the whole process."""

from bench.harness import Bench, Contestant, Goal

BENCH = Bench(
    name="capture",
    title="SmolLM2-135M (float32), 4,096 tokens: all heads captured (top 32 of a row), against the plain pass",
    contestants=(
        Contestant("capture", "smollm2_capture.py", params={"captured": True}),
        Contestant("plain pass", "smollm2_capture.py", params={"captured": False}),
    ),
    goals=(Goal("capture", "plain pass", 2.0),),
    rounds=3,
    warmup=0,
    memory=True,
)
