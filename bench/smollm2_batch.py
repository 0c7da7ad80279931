"""SmolLM2 from its GGUF file, eight requests of unequal length at once: one step of all of them."""

from bench.harness import PEERS, Bench, Contestant, Goal

PARAMS = {"context": 100, "rows": 8}

BENCH = Bench(
    name="smollm2_batch",
    title="Decode step of eight requests at once, SmolLM2-135M (Q4_1), after 100 to 156 tokens",
    contestants=(
        Contestant("vantage", "smollm2_vantage.py", params=PARAMS),
        Contestant("llama.cpp", "smollm2_llama_cpp.py", PEERS, PARAMS),
    ),
    goals=(Goal("vantage", "llama.cpp", 1 / 1.5),),
)
