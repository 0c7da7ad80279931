"""A gated delta layer reads a prompt: in chunks, token by token as the rule is written, and in transformers.

transformers runs its own torch function in chunks of 64; without its optional kernels, which need a GPU.
"""

from bench.harness import PEERS, Bench, Contestant, Goal

LENGTHS = (512, 2048, 8192)
BY_TOKEN = (512, 2048)


def contestants(training: bool, by_token: tuple[int, ...]) -> tuple[Contestant, ...]:
    chosen = []
    for n in LENGTHS:
        how = {"tokens": n, "training": training}
        chosen.append(Contestant(f"vantage, {n}", "delta_vantage.py", params=how))
        chosen.append(Contestant(f"transformers, {n}", "delta_transformers.py", PEERS, how))
        if n in by_token:
            chosen.append(Contestant(f"token by token, {n}", "delta_vantage.py", params={**how, "by_token": True}))
    return tuple(chosen)


def goals(by_token: tuple[int, ...], limit: float) -> tuple[Goal, ...]:
    """No slower than the peer, and a share of what the rule takes as it is written; maps are the same in all."""
    beside_peer = (Goal(f"vantage, {n}", f"transformers, {n}", 1.0) for n in LENGTHS)
    return (*beside_peer, *(Goal(f"vantage, {n}", f"token by token, {n}", limit) for n in by_token))


BENCH = Bench(
    name="delta_prompt",
    title="A gated delta layer, width 1,024, 8 heads of 128: so many tokens forward, float32",
    contestants=contestants(training=False, by_token=BY_TOKEN),
    goals=goals(BY_TOKEN, 0.5),
    rounds=5,
    warmup=1,
    threads=1,  # token by token operations are too small for two
)
