"""A forward pass against transformers."""

from bench.harness import PEERS, Bench, Contestant, Goal

BENCH = Bench(
    name="forward",
    title="Forward pass: 12 layers of width 768, 1,024 tokens, float32",
    contestants=(
        Contestant("vantage", "forward_vantage.py"),
        Contestant("transformers", "forward_transformers.py", PEERS),
    ),
    goals=(Goal("vantage", "transformers", 1.0),),
)
