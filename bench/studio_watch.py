"""What watching costs while the studio writes: one layer and all of them, against native steps without watching.

Wanted are 1.3 and 2 times. Native steps stand aside for whoever watches, so neither holds yet, and there is no goal.
"""

from bench.harness import Bench, Contestant

BENCH = Bench(
    name="studio_watch",
    title="SmolLM2-135M, steps of a chat after 500 tokens: attention watched in all layers, in one, in none",
    contestants=tuple(Contestant(how, "studio_watch.py", params={"how": how}) for how in ("all", "one", "none")),
    rounds=5,
    warmup=1,
)
