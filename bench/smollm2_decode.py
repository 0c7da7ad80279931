"""SmolLM2 from its GGUF file, one request: a decode step against llama.cpp and transformers."""

from bench.harness import PEERS, Bench, Contestant, Goal

CONTEXTS = (16, 512, 2048, 8000)
LONG = 2048  # beyond this transformers only takes time


def contestants(context: int) -> tuple[Contestant, ...]:
    params = {"context": context}
    both = (
        Contestant(f"vantage {context}", "smollm2_vantage.py", params=params),
        Contestant(f"llama.cpp {context}", "smollm2_llama_cpp.py", PEERS, params),
    )
    return (*both, Contestant(f"transformers {context}", "smollm2_transformers.py", PEERS, params))[
        : 3 if context <= LONG else 2
    ]


BENCH = Bench(
    name="smollm2_decode",
    title="Decode step of SmolLM2-135M (Q4_1) after 16, 512, 2,048 and 8,000 tokens",
    contestants=tuple(c for context in CONTEXTS for c in contestants(context)),
    goals=(
        *(Goal(f"vantage {n}", f"llama.cpp {n}", limit) for n in CONTEXTS for limit in (1 / 1.1, 1 / 1.5)),
        *(Goal(f"vantage {n}", f"transformers {n}", 1 / 5) for n in CONTEXTS if n <= LONG),
    ),
    rounds=6,
    warmup=1,
)
