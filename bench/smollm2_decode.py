"""SmolLM2 from its GGUF file, one request: a decode step against llama.cpp and transformers."""

from bench.harness import PEERS, Bench, Contestant, Goal

CONTEXTS = (16, 512, 2048)


def contestants(context: int) -> tuple[Contestant, ...]:
    params = {"context": context}
    return (
        Contestant(f"vantage {context}", "smollm2_vantage.py", params=params),
        Contestant(f"llama.cpp {context}", "smollm2_llama_cpp.py", PEERS, params),
        Contestant(f"transformers {context}", "smollm2_transformers.py", PEERS, params),
    )


BENCH = Bench(
    name="smollm2_decode",
    title="Decode step of SmolLM2-135M (Q4_1) after 16, 512 and 2,048 tokens",
    contestants=tuple(c for context in CONTEXTS for c in contestants(context)),
    goals=tuple(
        goal
        for context in CONTEXTS
        for goal in (
            Goal(f"vantage {context}", f"llama.cpp {context}", 1.0),
            Goal(f"vantage {context}", f"llama.cpp {context}", 1 / 1.5),
            Goal(f"vantage {context}", f"transformers {context}", 1 / 5),
        )
    ),
    rounds=6,
    warmup=1,
)
