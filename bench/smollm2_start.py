"""SmolLM2 from its GGUF file: how soon the first token comes. The goal for ours is one second beyond torch's import."""

from bench.harness import PEERS, Bench, Contestant, Goal

BENCH = Bench(
    name="smollm2_start",
    title="Load SmolLM2-135M (Q4_1) and give one token, in a new process; after `import torch`",
    contestants=(
        Contestant("vantage, packed", "smollm2_start.py", params={"who": "vantage"}),
        Contestant("vantage, float32", "smollm2_start.py", params={"who": "vantage", "dtype": "float32"}),
        Contestant("transformers", "smollm2_start.py", PEERS, {"who": "transformers"}),
        Contestant("llama.cpp", "smollm2_start.py", PEERS, {"who": "llama.cpp"}),
    ),
    goals=(
        Goal("vantage, packed", "transformers", 1.0),
        Goal("vantage, float32", "transformers", 1.0),
    ),
    rounds=3,
    warmup=1,
)
