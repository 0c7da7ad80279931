"""A decode step under a window costs the same however long the text is, and in a ring no more than in a cache that
keeps every token."""

from bench.harness import Bench, Contestant, Goal

LENGTHS = (1024, 4096, 16384)
CONTIGUOUS = f"{LENGTHS[0]}, contiguous"


def contestant(name: str, tokens: int, kind: str) -> Contestant:
    return Contestant(name, "decode_vantage.py", params={"context": tokens, "kind": kind, "window": 512})


BENCH = Bench(
    name="window",
    title="Decode step with a window of 512 after so many tokens, in a ring cache if not said otherwise",
    contestants=(
        *(contestant(f"{n}", n, "ring") for n in reversed(LENGTHS)),
        contestant(CONTIGUOUS, LENGTHS[0], "contiguous"),
    ),
    goals=(
        *(Goal(f"{n}", f"{LENGTHS[0]}", 1.15) for n in LENGTHS[1:]),
        Goal(f"{LENGTHS[0]}", CONTIGUOUS, 1.15),
    ),
)
