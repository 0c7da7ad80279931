"""Guessing ahead from the prompt pays where the answer repeats it."""

from bench.harness import Bench, Contestant, Goal

BENCH = Bench(
    name="smollm2_lookup",
    title="SmolLM2-135M copies a paragraph: 80 tokens with guesses by look-up, and without; prompt included",
    contestants=(
        Contestant("look-up", "smollm2_lookup.py", params={"guess": True}),
        Contestant("plain", "smollm2_lookup.py", params={"guess": False}),
    ),
    goals=(Goal("look-up", "plain", 1 / 1.5),),
    rounds=5,
    warmup=1,
)
