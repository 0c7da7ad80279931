"""What the studio does with a long text: one layer in full and the rest as summaries, against the plain pass."""

from bench.harness import Bench, Contestant, Goal

BENCH = Bench(
    name="studio_attention",
    title="SmolLM2-135M (float32), 2,000 tokens: read for the Attention page, one layer in full, the atlas",
    contestants=tuple(
        Contestant(how, "studio_attention.py", params={"how": how})
        for how in ("studio", "module by module", "plain pass")
    ),
    goals=(Goal("studio", "module by module", 2.0),),
    rounds=3,
    warmup=0,
)
