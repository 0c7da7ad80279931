"""What watching costs while the studio writes: one layer and all of them, against native steps without watching.

Native steps hand out the weights that they used, so they run on while somebody watches.
"""

from bench.harness import Bench, Contestant, Goal

BENCH = Bench(
    name="studio_watch",
    title="SmolLM2-135M, steps of a chat after 500 tokens: attention watched in all layers, in one, in none",
    contestants=tuple(Contestant(how, "studio_watch.py", params={"how": how}) for how in ("all", "one", "none")),
    goals=(Goal("one", "none", 1.3), Goal("all", "none", 2.0)),
    rounds=5,
    warmup=1,
)
