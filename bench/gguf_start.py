"""A GGUF file, imports apart: how soon its first token comes, and its memory with a cache of 512 tokens."""

from bench.harness import PEERS, Bench, Contestant, Goal

FILES = {"SmolLM2": False, "1.5B": True}


def contestants() -> tuple[Contestant, ...]:
    return tuple(
        Contestant(f"{who}, {name}", "gguf_start.py", *python, params={"who": who, "large": large})
        for name, large in FILES.items()
        for who, python in (("vantage", ()), ("llama.cpp", (PEERS,)))
    )


BENCH = Bench(
    name="gguf_start",
    title="From a GGUF file to the first token, SmolLM2-135M in Q4_1 and 1.5B in Q4_K_M; memory beyond the imports",
    contestants=contestants(),
    goals=tuple(
        Goal(f"vantage, {name}", f"llama.cpp, {name}", limit, measure)
        for name in FILES
        for measure, limits in (("seconds", (1.5, 1.0)), ("peak_growth", (1.2, 1.0)))
        for limit in limits
    ),
    rounds=3,
    warmup=1,
    memory=True,
)
