"""SmolLM2 from its GGUF file: the time a prompt takes, against llama.cpp."""

from bench.harness import PEERS, Bench, Contestant, Goal

LENGTHS = (512, 2048)


def contestants(length: int) -> tuple[Contestant, ...]:
    params = {"task": "prefill", "context": length}
    return (
        Contestant(f"vantage {length}", "smollm2_vantage.py", params=params),
        Contestant(f"llama.cpp {length}", "smollm2_llama_cpp.py", PEERS, params),
        Contestant(f"vantage fast {length}", "smollm2_vantage.py", params={**params, "fast": True}),
    )


BENCH = Bench(
    name="smollm2_prefill",
    title="A prompt of 512 and 2,048 tokens through SmolLM2-135M (Q4_1), to its first token",
    contestants=tuple(c for length in LENGTHS for c in contestants(length)),
    goals=tuple(
        Goal(f"vantage {length}", f"llama.cpp {length}", limit) for length in LENGTHS for limit in (1 / 1.5, 1 / 2)
    ),
    rounds=5,
    warmup=1,
)
