"""A larger file of the kind that most people download, random weights in the shape of Qwen2.5-1.5B in Q4_K_M: decode
steps and a prompt, against llama.cpp, and steps against reading the bytes of the file and of the cache from memory,
which bounds them. The file is written first, which takes some minutes once."""

from bench.harness import PEERS, Bench, Contestant, Goal

TASKS = (("decode", 16), ("decode", 512), ("decode", 2048), ("decode", 8000), ("prefill", 512))
CONTEXTS = [context for task, context in TASKS if task == "decode"]


def reading(context: int) -> str:
    return f"reading its bytes and {context} tokens"


def contestants(task: str, context: int) -> tuple[Contestant, ...]:
    params = {"task": task, "context": context, "large": True}
    both = (
        Contestant(f"vantage {task} {context}", "smollm2_vantage.py", params=params),
        Contestant(f"llama.cpp {task} {context}", "smollm2_llama_cpp.py", PEERS, params),
    )
    if task == "decode":
        return both
    return (*both, Contestant(f"vantage fast {task} {context}", "smollm2_vantage.py", params={**params, "fast": True}))


BENCH = Bench(
    name="q4_k_m",
    title="Random weights of 1.5B in Q4_K_M: a decode step after 16, 512, 2,048 and 8,000 tokens; a prompt of 512",
    contestants=(
        *(c for task, context in TASKS for c in contestants(task, context)),
        *(Contestant(reading(n), "read_bytes.py", params={"context": n}) for n in CONTEXTS),
    ),
    goals=(
        *(
            Goal(f"vantage {task} {n}", f"llama.cpp {task} {n}", limit)
            for task, n in TASKS
            for limit in ((1 / 1.1, 1 / 1.5) if task == "decode" else (1.0, 1 / 1.3))
        ),
        *(Goal(f"vantage decode {n}", reading(n), 1 / 0.9) for n in CONTEXTS),
    ),
    rounds=4,
    warmup=1,
)
