"""Activation patching in all layers and positions of a 30-token prompt, against TransformerLens."""

from bench.harness import LENS, Bench, Contestant, Goal

BENCH = Bench(
    name="patching",
    title="SmolLM2-135M (float32), residual stream patched in 30 layers × 30 positions",
    contestants=(
        Contestant("vantage", "patching_vantage.py"),
        Contestant("TransformerLens", "patching_transformer_lens.py", LENS),
    ),
    goals=(
        Goal("vantage", "TransformerLens", 1.0),
        Goal("vantage", "TransformerLens", 1.0, "peak_rss"),
    ),
    rounds=2,
    warmup=0,
    memory=True,
)
