"""A training step (forward, backward, AdamW) against transformers' GPT-2 and nanoGPT's model, eager and compiled.

nanoGPT is not on PyPI: clone https://github.com/karpathy/nanoGPT and name the folder in the environment variable
NANOGPT. Without it, transformers is the only peer. All have the same parameters, tokens and kind of optimiser.
"""

import os

from bench.harness import PEERS, Bench, Contestant, Goal

NANOGPT = os.environ.get("NANOGPT")


def contestants() -> tuple[Contestant, ...]:
    chosen = []
    for name, compiled in (("", False), (", compiled", True)):
        how = {"compiled": compiled}
        chosen += [
            Contestant(f"vantage{name}", "train_vantage.py", params=how),
            Contestant(f"transformers{name}", "train_transformers.py", PEERS, how),
        ]
        if NANOGPT:
            chosen.append(Contestant(f"nanoGPT{name}", "train_nanogpt.py", PEERS, how))
    return tuple(chosen)


def goals() -> tuple[Goal, ...]:
    peers = ("transformers", "nanoGPT") if NANOGPT else ("transformers",)
    return tuple(Goal(f"vantage{name}", f"{peer}{name}", 1.0) for name in ("", ", compiled") for peer in peers)


BENCH = Bench(
    name="train_step",
    title="Training step: 4 layers of width 256, GPT-2's shape, 16 x 256 tokens, float32",
    contestants=contestants(),
    goals=goals(),
)
