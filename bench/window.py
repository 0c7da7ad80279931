"""A decode step under a window costs the same however long the text is."""

from bench.harness import Bench, Contestant, Goal

LENGTHS = (1024, 4096, 16384)

BENCH = Bench(
    name="window",
    title="Decode step with a window of 512 in a ring cache, after so many tokens",
    contestants=tuple(
        Contestant(f"{n}", "decode_vantage.py", params={"context": n, "kind": "ring", "window": 512})
        for n in reversed(LENGTHS)
    ),
    goals=tuple(Goal(f"{n}", f"{LENGTHS[0]}", 1.15) for n in LENGTHS[1:]),
)
