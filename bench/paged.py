"""A paged cache costs hardly more than a contiguous one."""

from bench.harness import Bench, Contestant, Goal

BENCH = Bench(
    name="paged",
    title="Decode step after 2,048 tokens: paged against contiguous",
    contestants=tuple(
        Contestant(kind, "decode_vantage.py", params={"context": 2048, "kind": kind})
        for kind in ("paged", "contiguous")
    ),
    goals=(Goal("paged", "contiguous", 1.1),),
)
