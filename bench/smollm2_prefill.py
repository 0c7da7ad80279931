"""SmolLM2 from its GGUF file: the time a prompt takes, against llama.cpp."""

from bench.harness import PEERS, Bench, Contestant, Goal

PARAMS = {"task": "prefill", "context": 512}

BENCH = Bench(
    name="smollm2_prefill",
    title="A prompt of 512 tokens through SmolLM2-135M (Q4_1), to its first token",
    contestants=(
        Contestant("vantage", "smollm2_vantage.py", params=PARAMS),
        Contestant("llama.cpp", "smollm2_llama_cpp.py", PEERS, PARAMS),
    ),
    goals=(Goal("vantage", "llama.cpp", 1 / 2),),
)
