"""``python -m bench.accelerator_serving``: what a served model on a GPU is held to, each row with its floor and goal.

Long contexts as a share of the read bandwidth, a prefix that requests share, warm-up of a first and a second start,
memory beside weights and cache, and prompts that arrive while others decode. A LLaMA shape of 1B with random weights in
bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import vantage as vt
from bench.accelerator_generation import HEADS, KV_HEADS, RESULTS, VOCAB, bandwidth, model_of
from vantage.generation.engine import Engine
from vantage.model import Model
from vantage.spec.native import LatentDims

GIB = 2**30
CONTEXT, WIDTH, BLOCK = 131_072, 128, 16
LATENT = LatentDims(HEADS, rank=512, nope=128, rope=64, values=128)
ROWS = 64
PROMPTS, OUTPUTS = (128, 2048), (128, 512)  # tokens of prompts that arrive, and of their answers


@dataclass(frozen=True)
class Row:
    """One measurement against what is asked of it."""

    what: str
    value: float
    unit: str
    floor: float | None = None
    goal: float | None = None
    less: bool = False  # whether less is better
    note: str = ""

    def __str__(self) -> str:
        bounds = "" if self.floor is None else f"  floor {self.floor:g}, goal {self.goal:g}: {self._verdict()}"
        return f"{self.what:66} {self.value:10,.2f} {self.unit:9}{bounds}{'  ' + self.note if self.note else ''}"

    def _verdict(self) -> str:
        assert self.floor is not None
        assert self.goal is not None
        sign = -1 if self.less else 1
        return (
            "goal met"
            if sign * self.value >= sign * self.goal
            else "floor met"
            if sign * self.value >= sign * self.floor
            else "missed"
        )


# ---- long contexts


def rows_in_blocks(lengths: list[int], device: torch.device) -> tuple[Any, int]:
    """Where rows of such lengths stand in a pool, and how many places that has."""
    from vantage.kernels.gpu import decode

    blocks = [-(-(n + 1) // BLOCK) for n in lengths]
    table = torch.zeros((len(lengths), max(blocks)), dtype=torch.int32)
    order = torch.randperm(sum(blocks), dtype=torch.int32) + 1  # blocks lie anywhere
    for row, part in zip(table, order.split(blocks), strict=True):
        row[: len(part)] = part
    held = torch.tensor(lengths, dtype=torch.int32, device=device)
    state = decode.RowState(held, held, torch.zeros_like(held), table.to(device), BLOCK)
    return state, (sum(blocks) + 1) * BLOCK


def held_keys(lengths: list[int], speed: float, splits: int | None = None) -> float:
    """The share of the bandwidth at which one layer's attention reads the keys and values of such rows."""
    from vantage.kernels.gpu import decode, row_shares

    rows, device = len(lengths), torch.device("cuda")
    state, places = rows_in_blocks(lengths, device)
    k, v = (torch.randn(KV_HEADS, places, WIDTH, dtype=torch.bfloat16, device=device) for _ in "kv")
    stores = torch.tensor([decode.store_numbers([k, v])], device=device)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    shares = row_shares.splits_for(rows, KV_HEADS, processors) if splits is None else splits
    work = decode.Workspace.make(rows, shares, HEADS, KV_HEADS, WIDTH, device)
    qkv = torch.randn(rows, (HEADS + 2 * KV_HEADS) * WIDTH, dtype=torch.bfloat16, device=device)
    out = torch.empty(rows, HEADS * WIDTH, dtype=torch.bfloat16, device=device)
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "key_dim": WIDTH, "value_dim": WIDTH, "scale": WIDTH**-0.5}

    def attend() -> None:
        decode.decode(qkv, out, stores, 0, state, work, **sizes)

    seconds = in_a_graph(attend, 20)
    return sum(lengths) * KV_HEADS * WIDTH * 2 * 2 / seconds / speed


def held_latents(lengths: list[int], speed: float) -> float:
    """The same of latents, with the products that carry queries to them and values back."""
    from vantage.kernels.gpu import decode, head_vectors, latent

    rows, device, sizes = len(lengths), torch.device("cuda"), LATENT
    state, places = rows_in_blocks(lengths, device)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=device)

    kept = normal(1, places, sizes.rank + sizes.rope)
    stores = torch.tensor([decode.store_numbers([kept])], device=device)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    shares = latent.splits_for(rows, sizes.heads, processors)
    work = latent.LatentWorkspace.make(rows, shares, sizes, torch.bfloat16, device)
    q, kv = normal(rows, sizes.heads * (sizes.nope + sizes.rope)), normal(rows, sizes.rank + sizes.rope)
    k_up, v_up = normal(sizes.heads, sizes.nope, sizes.rank), normal(sizes.heads, sizes.values, sizes.rank)
    out = torch.empty(rows, sizes.heads * sizes.values, dtype=torch.bfloat16, device=device)
    norm = head_vectors.HeadNorm(None, 1e-6, 0.0)

    def attend() -> None:
        latent.decode_latent(q, kv, out, k_up, v_up, stores, 0, state, work, sizes=sizes, norm=norm, scale=0.1)

    return sum(lengths) * kept.shape[-1] * 2 / in_a_graph(attend, 20) / speed


def in_a_graph(call: Callable[[], None], times: int) -> float:
    """Seconds of one call, the median of several graphs of so many."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    graph.replay()
    seconds = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / times)
    return statistics.median(seconds)


def mixed_lengths() -> list[int]:
    """From 1k to 128k, as many short as long ones on a logarithmic scale."""
    draw = random.Random(0)
    return [int(1024 * 128 ** draw.random()) for _ in range(ROWS)]


def long_contexts(speed: float) -> Iterator[Row]:
    yield Row("128k held, 32/8 heads, one row", held_keys([CONTEXT], speed), "share", 0.65, 0.8)
    lengths = mixed_lengths()
    note = f"{sum(lengths):,} tokens"
    yield Row(f"{ROWS} rows of 1k to 128k", held_keys(lengths, speed), "share", 0.65, 0.8, note=note)
    for what, some in (("one row", [CONTEXT]), (f"{ROWS} rows of 1k to 128k", lengths)):
        yield Row(f"128k held, MLA, {what}", held_latents(some, speed), "share", 0.65, 0.7)


# ---- the engine


def prompt_of(draw: random.Random, tokens: int) -> list[int]:
    return [draw.randrange(VOCAB) for _ in range(tokens)]


def first_token(engine: Engine, prompt: list[int]) -> float:
    """Seconds until a request's first token."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    request = engine.submit(prompt, max_tokens=1)
    engine.run()
    assert len(request.outputs[0].tokens) == 1
    return time.perf_counter() - begun


def shared_prefix(model: Model) -> Iterator[Row]:
    draw = random.Random(1)
    for chunk in (256, 4096):
        engine = Engine(model, capacity=65_536, chunk=chunk)
        first_token(engine, prompt_of(draw, 4160))  # every shape once
        prefix, cold, warm = prompt_of(draw, 4096), [], []
        first_token(engine, prefix + prompt_of(draw, 64))
        for _ in range(5):
            cold.append(first_token(engine, prompt_of(draw, 4160)))
            warm.append(first_token(engine, prefix + prompt_of(draw, 64)))
        note = f"{statistics.median(cold) * 1e3:.1f} and {statistics.median(warm) * 1e3:.1f} ms"
        times = statistics.median(cold) / statistics.median(warm)
        yield Row(f"a shared prefix of 4k, chunks of {chunk}: first token sooner", times, "times", 6, 8, note=note)


def decoding(model: Model, rows: int, seconds: float) -> tuple[Engine, float]:
    """An engine with so many rows decoding, and its tokens a second."""
    engine = Engine(model, rows=rows, capacity=rows * 2832, chunk=2048)
    draw = random.Random(0)
    for _ in range(rows):
        engine.submit(prompt_of(draw, draw.randint(*PROMPTS)), max_tokens=720)
    while engine.prompts_wait:
        engine.step()
    for _ in range(4):
        engine.step()
    begun, before = time.perf_counter(), engine.stats.generated
    while time.perf_counter() < begun + seconds:
        engine.step()
    return engine, (engine.stats.generated - before) / (time.perf_counter() - begun)


def prefill_rate(model: Model) -> float:
    """Prompt tokens a second with nothing else to do."""
    engine, draw = Engine(model, rows=ROWS, capacity=ROWS * 2832, chunk=2048), random.Random(2)
    for tokens in range(64, PROMPTS[1] + 1, 64):  # every shape once
        engine.submit(prompt_of(draw, tokens), max_tokens=1)
    engine.run()
    prompts = [prompt_of(draw, draw.randint(*PROMPTS)) for _ in range(64)]
    begun = time.perf_counter()
    for prompt in prompts:
        engine.submit(prompt, max_tokens=1)
    engine.run()
    return sum(map(len, prompts)) / (time.perf_counter() - begun)


def arrivals(model: Model, seconds: float, chunk: int = 2048) -> Iterator[Row]:
    """Prompts arrive whenever a row is free; and what it costs a request that runs."""
    prefill, (engine, decode) = prefill_rate(model), decoding(model, ROWS, 1.0)
    alone = ROWS / decode
    del engine
    yield from arriving(model, seconds, chunk, prefill, decode, alone)


def arriving(model: Model, seconds: float, chunk: int, prefill: float, decode: float, alone: float) -> Iterator[Row]:
    """The same, given tokens a second of each alone and seconds between two tokens."""
    engine, draw = Engine(model, rows=ROWS, capacity=ROWS * 2832, chunk=chunk), random.Random(3)
    running = []

    def fill() -> None:
        while len(running) < ROWS + 8:  # some always wait
            prompt = prompt_of(draw, draw.randint(*PROMPTS))
            running.append(engine.submit(prompt, max_tokens=draw.randint(*OUTPUTS)))

    fill()
    warm = time.perf_counter() + 2.0
    while time.perf_counter() < warm or engine.stats.generated < ROWS * 64:
        engine.step()
        running[:] = [r for r in running if r.state != "finished"]
        fill()
    begun, before, gaps = time.perf_counter(), engine.stats, []
    while (now := time.perf_counter()) < begun + seconds:
        tokens, reads = engine.stats.generated, engine.prompts_wait
        engine.step()
        if reads and (made := engine.stats.generated - tokens):
            gaps.append((time.perf_counter() - now) / max(1.0, made / ROWS))
        running[:] = [r for r in running if r.state != "finished"]
        fill()
    took, after = time.perf_counter() - begun, engine.stats
    read, made = after.prefilled - before.prefilled, after.generated - before.generated
    allowed = read / prefill + made / decode
    note = f"{read / took:,.0f} read and {made / took:,.0f} made a second; alone {prefill:,.0f} and {decode:,.0f}"
    what = f"prompts of 128 to 2,048 arriving, chunks of {chunk}: share of both rates"
    yield Row(what, allowed / took, "share", 0.6, 0.75, note=note)
    between = statistics.median(gaps) if gaps else float("nan")
    note = f"{between * 1e3:.2f} ms, alone {alone * 1e3:.2f}; longest {max(gaps, default=0) * 1e3:.1f}"
    what = f"time between two tokens while prompts are read, chunks of {chunk}"
    yield Row(what, between / alone, "times", 3, 2, less=True, note=note)


def memory(model: Model) -> Iterator[Row]:
    """What is in use beside weights and cache after a batch of 64 and a request alone."""
    torch.cuda.empty_cache()
    engine, _ = decoding(model, ROWS, 0.5)
    weights = sum(t.nbytes for t in {*model.parameters(), *model.buffers()})
    cache = engine._memory._empty.bytes
    free, total = torch.cuda.mem_get_info()
    note = f"weights {weights / GIB:.2f}, cache {cache / GIB:.2f} GiB; CUDA's own context included"
    yield Row(
        "memory beyond weights and cache", (total - free - weights - cache) / GIB, "GiB", 3, 2, less=True, note=note
    )
    del engine


# ---- starts


def warm_up(started: float) -> tuple[float, float]:
    """Seconds from the start of the process to its first token; and from a model that is there to answers at full
    speed, for one request and for many."""
    model = model_of("1B")
    torch.cuda.synchronize()
    begun = time.perf_counter()
    vt.generate(model, [5] * 512, max_tokens=1, ends=False)
    first = time.time() - started
    vt.generate(model, [5] * 512, max_tokens=32, ends=False)
    vt.generate(model, [[5 + i] * 512 for i in range(ROWS)], max_tokens=32, ends=False)
    vt.generate(model, [5] * 512, max_tokens=32, temperature=0.8, top_p=0.9, seed=1, ends=False)
    return first, time.perf_counter() - begun


def starts() -> Iterator[Row]:
    """A first start compiles every kernel, a second one finds them; the machine's memory has the packages' files."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TRITON_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        for which, floor, goal in (("first", 90, 60), ("second", 20, 10)):
            command = [sys.executable, "-m", "bench.accelerator_serving", "--warm-up", str(time.time())]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            first, whole = map(float, done.stdout.split()[-2:])
            yield Row(f"{which} start: until all shapes are warm, beyond loading", whole, "s", floor, goal, less=True)
            yield Row(f"{which} start: from the start of the process to its first token", first, "s", less=True)


SECTIONS = ("long", "prefix", "memory", "arrivals", "starts")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator_serving", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some of the rows")
    parser.add_argument("--seconds", type=float, default=8.0, help="for arriving prompts; default: %(default)s")
    parser.add_argument("--warm-up", type=float, help="of a process that began then: print its seconds, nothing else")
    out = RESULTS / "accelerator_serving.json"
    parser.add_argument("--out", type=Path, default=out, help="the JSON; default: %(default)s")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("this bench needs a CUDA GPU", file=sys.stderr)
        return 2
    if args.warm_up is not None:
        print(*warm_up(args.warm_up))
        return 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "python": platform.python_version(), "gpu": torch.cuda.get_device_name()}
    rows: list[Row] = []
    with torch.inference_mode():
        speed = bandwidth()
        model = model_of("1B") if {"prefix", "memory", "arrivals"} & {*args.only} else None
        for section in args.only:
            made: Iterator[Row] = {
                "long": lambda: long_contexts(speed),
                "prefix": lambda: shared_prefix(_there(model)),
                "memory": lambda: memory(_there(model)),
                "arrivals": lambda: arrivals(_there(model), args.seconds),
                "starts": starts,
            }[section]()
            for row in made:
                rows.append(row)
                print(row, flush=True)
                args.out.write_text(json.dumps({"versions": versions, "rows": [asdict(one) for one in rows]}, indent=1))
    return 0


def _there(model: Model | None) -> Model:
    assert model is not None
    return model


if __name__ == "__main__":
    sys.exit(main())
