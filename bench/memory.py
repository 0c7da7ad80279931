"""The plain causal case builds no mask."""

from bench.harness import Bench, Contestant, Goal

BENCH = Bench(
    name="memory",
    title="One causal attention layer over 16,384 tokens: memory beyond the set-up",
    contestants=(
        Contestant("vantage", "attention_memory.py", params={"ours": True}),
        Contestant("by hand", "attention_memory.py", params={"ours": False}),
    ),
    goals=(Goal("vantage", "by hand", 1.2, "peak_growth"),),
    rounds=3,
    warmup=0,
    memory=True,
)
