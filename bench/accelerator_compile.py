"""``python -m bench.accelerator_compile``: decode steps under ``torch.compile(model)`` against the model as it is.

A LLaMA shape of 1B with random weights in bfloat16 on a GPU, one row after 512 tokens, called as a user would call it
(``model(token, cache=cache)``), with each kind of cache. "eager" and "compiled" run module by module (with the kernel
``sdpa`` no step is lowered); "auto" and "auto, compiled" run what the model chooses by itself, a lowered graph where
there is one. All four in turn, medians. Asked for: compiled is never slower than the same model uncompiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from bench.accelerator_encodings import model_with
from bench.accelerator_generation import VOCAB
from vantage.model import Model
from vantage.model.shared_copy import copy_sharing_weights

HELD, WARM, STEPS, ROUNDS = 512, 24, 32, 5
CASES = [
    ("RoPE", "contiguous"),
    ("RoPE", "paged"),
    ("RoPE, window of 1,024", "ring"),
    ("T5", "contiguous"),
    ("MLA", "contiguous"),
]


def steps_of(model: Model, call: Callable[..., torch.Tensor], kind: str, steps: int) -> Callable[[int], float]:
    """After the prompt and the first steps, in which code is compiled: milliseconds of each of the next ones."""
    cache = model.new_cache(1, kind=kind, capacity=HELD + steps)
    call(torch.randint(VOCAB, (1, HELD), device="cuda"), cache=cache)
    token = torch.zeros((1, 1), dtype=torch.long, device="cuda")

    def run(count: int) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            call(token, cache=cache)
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / count * 1e3

    run(WARM)
    return run


def measure(name: str, kind: str, rounds: int) -> dict[str, Any]:
    chosen = model_with(name)
    plain = copy_sharing_weights(chosen)
    chosen.kernel, plain.kernel = "auto", "sdpa"
    calls = {
        "eager": (plain, plain),
        "compiled": (plain, torch.compile(plain)),
        "auto": (chosen, chosen),
        "auto, compiled": (chosen, torch.compile(chosen)),
    }
    runs: dict[str, Callable[[int], float]] = {}
    started = {}
    for who, (model, call) in calls.items():
        before, begun = counters["stats"]["unique_graphs"], time.perf_counter()
        runs[who] = steps_of(model, call, kind, WARM + rounds * STEPS)
        started[who] = {"graphs": counters["stats"]["unique_graphs"] - before, "seconds": time.perf_counter() - begun}
    taken: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(rounds):
        for who, run in runs.items():
            taken[who].append(run(STEPS))
    for who, ms in taken.items():
        first = f"{started[who]['graphs']} graphs compiled, {started[who]['seconds']:.1f} s to begin"
        print(
            f"{name}, {kind}, {who}: {statistics.median(ms):.2f} ms ({min(ms):.2f} to {max(ms):.2f}), {first}",
            flush=True,
        )
    return {"encoding": name, "cache": kind, "ms": taken, "started": started}


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    until = time.monotonic() + args.seconds
    for name, kind in CASES:
        if time.monotonic() < until:
            yield measure(name, kind, args.rounds)
            torch.cuda.empty_cache()


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator_compile", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case later")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this bench needs a GPU")
    lines = list(measured(args))
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
