"""A decode step against transformers' generate."""

from bench.harness import PEERS, Bench, Contestant, Goal

BENCH = Bench(
    name="decode",
    title="Decode step after 256 tokens: 12 layers of width 768, float32, fixed contiguous cache",
    contestants=(
        Contestant("vantage", "decode_vantage.py"),
        Contestant("transformers", "decode_transformers.py", PEERS),
    ),
    goals=(Goal("vantage", "transformers", 1 / 1.5),),
)
