"""Our server against llama.cpp's (`llama-cpp-python[server]`), over HTTP: the same GGUF file, threads and clients.

A figure is the wall time of a round over all tokens that its clients got, prompts and connections included; tokens per
second are in the result file. Every client has a prompt of its own, and every round others.
"""

from bench.harness import PEERS, Bench, Contestant, Goal

CLIENTS = (1, 8, 32)
NAMES = {clients: f"{clients} client{'s' if clients > 1 else ''}" for clients in CLIENTS} | {0: "turn 5"}


def contestants() -> tuple[Contestant, ...]:
    return tuple(
        Contestant(f"{who}, {name}", "serving.py", *python, params={"who": who, "clients": clients})
        for clients, name in NAMES.items()
        for who, python in (("vantage", ()), ("llama.cpp", (PEERS,)))
    )


LIMITS = ((8, 1 / 3), (32, 1 / 1.5), (0, 1.0), (0, 0.5))  # one client has no goal: it is told

BENCH = Bench(
    name="serving",
    title="SmolLM2-135M (Q4_1) over HTTP: a token of 64 for each client; and the first token of a chat's fifth turn",
    contestants=contestants(),
    goals=tuple(Goal(f"vantage, {NAMES[n]}", f"llama.cpp, {NAMES[n]}", limit) for n, limit in LIMITS),
    rounds=5,
    warmup=1,
)
