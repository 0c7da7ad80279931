"""Activation patching of a 30-token prompt, every position in some layers, against TransformerLens where it is here.

A whole sweep of TransformerLens takes minutes a round, and each of its cells takes as long in any layer; ours take less
in later layers. So both patch an early, a middle and a late layer.
"""

from bench.harness import LENS, Bench, Contestant, Goal

LAYERS = [0, 15, 29]
OURS = Contestant("vantage", "patching_vantage.py", params={"layers": LAYERS})
THEIRS = Contestant("TransformerLens", "patching_transformer_lens.py", LENS, params={"layers": LAYERS})
HERE = LENS.exists()  # `make lens` installs it

BENCH = Bench(
    name="patching",
    title="SmolLM2-135M (float32), residual stream patched in layers 0, 15 and 29 × 30 positions"
    f"{'' if HERE else ' (alone: TransformerLens is not here, make lens)'}",
    contestants=(OURS, THEIRS) if HERE else (OURS,),
    goals=(
        Goal("vantage", "TransformerLens", 1.0),
        Goal("vantage", "TransformerLens", 1.0, "peak_rss"),
    )
    if HERE
    else (),
    rounds=3,
    warmup=0,
    memory=True,
)
