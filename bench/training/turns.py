"""Training steps of several models, each in a process of its own, timed in turn: ``python -m bench.training.turns``.

All compile at the same time, then take turns on the GPU, so that one which grew warm or is shared slows all of them
alike. Each says into how many graphs its step was compiled and where it broke. With ``--profile FOLDER`` each writes
what its kernels take. ``t5@FOLDER`` runs the code of another checkout beside this one.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

WARM_UP = 4  # steps
PROFILED = 3  # steps
ROWS_SHOWN = 45  # of a profile
ANSWER = "answer: "  # what a process says to this one; other lines are its compiler's


def worker(position: str, kernel: str, shape: str, rows: int) -> None:
    """Makes one model, then does what it is asked: a number of steps to time, or a profile."""
    from bench.training.__main__ import ours, timed

    begun = time.perf_counter()
    step, _ = ours(shape, position, rows, kernel=kernel)
    timed(step, WARM_UP)
    answer({"ready": round(time.perf_counter() - begun, 1), **compiled()})
    for line in sys.stdin:
        asked = json.loads(line)
        answer(timed(step, asked) if isinstance(asked, int) else profile_of(step))


def answer(told: object) -> None:
    print(ANSWER + json.dumps(told), flush=True)


def compiled() -> dict[str, Any]:
    import torch
    from torch._dynamo.utils import counters

    breaks = {why.splitlines()[0]: n for why, n in counters["graph_break"].items()}
    memory = torch.cuda.max_memory_allocated() / 2**30
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": breaks, "GiB": round(memory, 1)}


def profile_of(step: Any) -> str:
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as kept:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    ran = [e for e in kept.key_averages() if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    on_device = sorted(((e.self_device_time_total, e.count, e.key) for e in ran), reverse=True)
    total = sum(us for us, _, _ in on_device)
    shown = (f"{us / PROFILED / 1e3:9.3f} {n / PROFILED:7.1f}  {name[:150]}" for us, n, name in on_device[:ROWS_SHOWN])
    return "\n".join((f"{total / PROFILED / 1e3:.2f} ms of kernels a step", "ms a step   calls  kernel", *shown))


class Model:
    """A process with one model, and what it says."""

    def __init__(self, who: str, args: argparse.Namespace):
        self.who = who
        name, _, folder = who.partition("@")
        position, _, kernel = name.partition(":")
        command = [sys.executable, "-m", "bench.training.turns", position, "--worker", kernel or "auto"]
        where = folder or os.getcwd()
        self.process = subprocess.Popen(
            [*command, "--shape", args.shape, "--rows", str(args.rows)],
            cwd=where,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([where, os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.notes: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, what: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self.hear(60.0)

    def hear(self, seconds: float) -> Any:
        """The next answer; ``None``: the process ended, or says nothing for so long."""
        until = time.perf_counter() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, until - time.perf_counter()))
            except queue.Empty:
                return None
            if line is None or line.startswith(ANSWER):
                return None if line is None else json.loads(line.removeprefix(ANSWER))
            self.notes.append(line.rstrip())


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m bench.training.turns", description=__doc__.splitlines()[0])
    parser.add_argument("who", nargs="+", help="POSITION, POSITION:KERNEL or either of them with @FOLDER")
    parser.add_argument("--shape", default="124M")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="of a round; default: %(default)s")
    parser.add_argument("--wait", type=float, default=240.0, help="seconds until those that compiled are timed")
    parser.add_argument("--profile", metavar="FOLDER")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--worker", metavar="KERNEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.who[0], args.worker, args.shape, args.rows)
        return
    until = time.perf_counter() + args.wait
    models = [Model(who, args) for who in args.who]
    ready = {model: told for model in models if (told := first_word(model, until)) is not None}
    times: dict[Model, list[float]] = {model: [] for model in ready}
    for _ in range(args.rounds):
        for model, seconds in times.items():
            seconds.append(model.ask(args.steps) or float("inf"))
    show(args.shape, times)
    if args.profile:
        for model in ready:
            name = "".join(c if c.isalnum() else "-" for c in model.who)
            Path(args.profile, f"profile-{name}.txt").write_text(str(model.ask("profile")))
    for model in models:
        model.process.kill()
    if args.json:
        lines = [{"who": model.who, "seconds": times[model], **told} for model, told in ready.items()]
        Path(args.json).write_text(json.dumps(lines, indent=1))
    sys.exit(len(ready) < len(models))


def first_word(model: Model, until: float) -> dict[str, Any] | None:
    """What a process says when it has compiled; ``None``: it failed, or is not ready in time."""
    told = model.hear(max(1.0, until - time.perf_counter()))
    what = "not ready" if told is None else told
    print(time.strftime("%H:%M:%S"), f"{model.who}: {what}", *model.notes[-12:], sep="\n    ", flush=True)
    return told


def show(shape: str, times: dict[Model, list[float]]) -> None:
    """Of each round its share of the first model, and the middle of those."""
    first = next(iter(times), None)
    for model, seconds in times.items():
        assert first is not None
        share = statistics.median(x / y for x, y in zip(seconds, times[first], strict=True))
        middle, least, most = (1e3 * f(seconds) for f in (statistics.median, min, max))
        line = f"{shape}  {model.who:32s} {middle:8.2f} ms a step ({least:.2f} to {most:.2f})"
        print(f"{line}  {share:.3f} of {first.who}", flush=True)


if __name__ == "__main__":
    main()
