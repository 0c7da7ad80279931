"""A gated delta layer forward and backward. Token by token the way back costs the square of the length: 512 alone."""

from bench.delta_prompt import contestants, goals
from bench.harness import Bench

BY_TOKEN = (512,)

BENCH = Bench(
    name="delta_training",
    title="A gated delta layer, width 1,024, 8 heads of 128: so many tokens forward and backward, float32",
    contestants=contestants(training=True, by_token=BY_TOKEN),
    goals=goals(BY_TOKEN, 0.25),
    rounds=5,
    warmup=1,
    threads=1,  # token by token operations are too small for two
)
