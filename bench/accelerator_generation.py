"""``python -m bench.accelerator_generation``: tokens a second on a GPU, as a share of what reading the weights allows.

LLaMA shapes of 1B and 8B with random weights in bfloat16. A step is bound by the bytes it must read, weights and keys
and values, at the bandwidth that a plain copy reaches in the same run. Beside ours at batch 1, compiled:
``--gpt-fast FOLDER``, its published model code (``model.py``), and ``--transformers``, with a static cache. Results go
to ``bench/results``.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch

import vantage as vt
from bench.accelerator_peers import HEADS, KV_HEADS, VOCAB, PeerMissing, gpt_fast, transformers_static
from vantage.generation.engine import Engine
from vantage.kernels.native import Format
from vantage.kernels.packed_layout import FORMS, size
from vantage.model import Model
from vantage.model.packed import Packed, fits, put
from vantage.spec.sampling import RowChoice, Sampling

RESULTS = Path(__file__).parent / "results"
SHAPES = {"1B": (2048, 8192, 16), "8B": (4096, 14336, 32)}
STEPS, ROUNDS = 32, 7
HELD = (512, 8192)  # tokens of one row
ROWS = {"1B": (8, 64, 256), "8B": (8, 64)}
ENGINE_ROWS = {"1B": (64, 256), "8B": (64,)}
SECTIONS = ("alone", "rows", "engine", "blocks")
BLOCKS = (Format.Q8_0, Format.Q4_0, Format.Q4_K, Format.Q6_K)
DRAWN = {"greedy": Sampling(), "temperature": Sampling(1.0, seed=1), "top-p 0.9": Sampling(0.8, top_p=0.9, seed=1)}


@dataclass(frozen=True)
class Row:
    """One measurement: medians, and the lowest and highest."""

    model: str
    what: str
    tokens_per_second: float
    lowest: float
    highest: float
    bound: float | None = None  # what the bandwidth allows
    first_call: float | None = None  # seconds: compiling and capturing

    def __str__(self) -> str:
        share = "" if self.bound is None else f"  {self.tokens_per_second / self.bound:.2f} of {self.bound:,.0f}"
        first = "" if self.first_call is None else f"  first call {self.first_call:.1f} s"
        spread = f"({self.lowest:,.0f} to {self.highest:,.0f})"
        return f"{self.model:4} {self.what:44} {self.tokens_per_second:10,.0f} tokens/s {spread:24}{share}{first}"


def model_of(name: str) -> Model:
    width, hidden, layers = SHAPES[name]
    ffn = vt.FeedForward(hidden, "silu", gated=True)
    spec = vt.decoder(
        vocab=VOCAB, width=width, layers=layers, heads=HEADS, kv_heads=KV_HEADS, ffn=ffn, position=vt.Rope(base=5e5)
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = vt.build(spec, seed=0)
    torch.set_default_dtype(torch.float32)
    return model.to("cuda", torch.bfloat16).eval()


def put_blocks(model: Model, format: Format) -> None:
    """Random weights in blocks of a format in the place of every linear map; embeddings and heads in 8 bits."""
    names: dict[torch.Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for parameter, owners in names.items():
        if not fits(model, owners):
            continue
        kind = Format.Q8_0 if owners[0].startswith(("embed", "head")) else format
        form, (outputs, inputs) = FORMS[kind], parameter.shape
        data = torch.randint(256, (size(kind, outputs, inputs),), dtype=torch.uint8, device="cuda")
        halves = 16 * (1 + form.minimum)
        small = torch.full((halves,), 1e-3, dtype=torch.float16, device="cuda")
        data.view(-1, form.bytes)[:, : 2 * halves] = small.view(torch.uint8)  # scales that are numbers
        put(model, owners, [Packed(data, kind, outputs, inputs)])
    model.to("cuda", torch.bfloat16)
    torch.cuda.empty_cache()


def bandwidth() -> float:
    """Bytes a second that a plain copy reads and writes."""
    x = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    y.copy_(x)
    begin.record()
    for _ in range(10):
        y.copy_(x)
    end.record()
    torch.cuda.synchronize()
    return 20 * x.nbytes / (begin.elapsed_time(end) / 1e3)


def bytes_of_a_step(model: Model, rows: int, held: int) -> int:
    tied = model.spec.head is not None and model.spec.head.tied
    skipped = 0 if tied else sum(t.nbytes for t in tensors_of(model.embed.tokens))
    weights = sum(t.nbytes for t in tensors_of(model)) - skipped
    width = model.spec.width // HEADS
    return weights + rows * held * len(model.blocks) * KV_HEADS * width * 2 * 2


def tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    return chain(module.parameters(), module.buffers())


def steps(name: str, model: Model, rows: int, held: int, speed: float, note: str = "") -> Row:
    """Steps of rows that hold as much, one call after the other."""
    empty = model.new_cache(1, kind="paged", capacity=rows * (held + STEPS * (ROUNDS + 2)), block=16)
    caches = [empty.fresh(1) for _ in range(rows)]
    prompt = torch.randint(VOCAB, (1, held), device="cuda")
    for cache in caches:
        model.hidden(prompt, cache=cache)
    choices = [RowChoice(0.0, 0, 1.0, 0.0, ())] * rows
    begun = time.perf_counter()
    pending = model.steps_ahead([1] * rows, caches, STEPS, choices)
    assert pending is not None, "these shapes run as graphs"
    pending.read()
    first = time.perf_counter() - begun
    rates = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        pending = model.steps_ahead(pending, caches, STEPS, choices)
        assert pending is not None
        pending.read()
        rates.append(rows * STEPS / (time.perf_counter() - begun))
    bound = rows * speed / bytes_of_a_step(model, rows, held + STEPS * ROUNDS // 2)
    what = f"{rows} rows, {held:,} tokens held{note}"
    return Row(name, what, statistics.median(rates), min(rates), max(rates), bound, first)


def generated(name: str, model: Model) -> Row:
    """``vt.generate`` of one prompt, its prompt not counted."""
    prompt, rates = [5] * 512, []
    vt.generate(model, prompt, max_tokens=8)
    for _ in range(3):
        times = []
        for tokens in (1, 513):
            begun = time.perf_counter()
            vt.generate(model, prompt, max_tokens=tokens, ends=False)
            times.append(time.perf_counter() - begun)
        rates.append(512 / (times[1] - times[0]))
    return Row(name, "vt.generate, one prompt of 512", statistics.median(rates), min(rates), max(rates))


def served(name: str, model: Model, rows: int, how: str) -> Row:
    """The engine with all rows decoding, 128 to 2,048 tokens held, choosing included."""
    engine = Engine(model, rows=rows, capacity=rows * 2832, chunk=4096)
    draw = random.Random(0)
    requests = []
    for _ in range(rows):
        prompt = [draw.randrange(VOCAB) for _ in range(draw.randint(128, 2048))]
        request = engine.submit(prompt, max_tokens=720, sampling=DRAWN[how])
        requests.append(request)
    while engine.prompts_wait:
        engine.step()
    for _ in range(4):
        engine.step()
    rates = []
    for _ in range(5):  # without waiting in between: steps are always under way
        begun, before = time.perf_counter(), engine.stats.generated
        while engine.stats.generated < before + 64 * rows:
            engine.step()
        rates.append((engine.stats.generated - before) / (time.perf_counter() - begun))
    assert not any(request.outputs[0].finish for request in requests), "rows ended while they were measured"
    return Row(name, f"engine, {rows} rows, {how}", statistics.median(rates), min(rates), max(rates))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator_generation", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--gpt-fast", type=Path, help="a folder with gpt-fast's model.py")
    parser.add_argument(
        "--transformers",
        nargs="?",
        const="",
        help="also transformers with a static cache; from a folder, if one is given",
    )
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS), help="some of the rows")
    out = RESULTS / "accelerator_generation.json"
    parser.add_argument("--out", type=Path, default=out, help="the JSON; default: %(default)s")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("this bench needs a CUDA GPU", file=sys.stderr)
        return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "python": platform.python_version(), "gpu": torch.cuda.get_device_name()}
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        print(row, flush=True)
        args.out.write_text(json.dumps({"versions": versions, "rows": [asdict(one) for one in rows]}, indent=1))

    with torch.inference_mode():
        speed = bandwidth()
        print(f"a copy moves {speed / 1e12:.2f} TB/s", flush=True)
        for name in args.models:
            for row in measured(name, args.only, speed):
                keep(row)
            torch.cuda.empty_cache()
            peers = {"gpt-fast": (args.gpt_fast, gpt_fast), "transformers": (args.transformers, transformers_static)}
            for where, peer in (pair for pair in peers.values() if pair[0] is not None):
                try:
                    keep(Row(name, *peer(SHAPES[name], where)))
                except PeerMissing as why:
                    print(why, file=sys.stderr)
                torch.cuda.empty_cache()
    return 0


def measured(name: str, only: list[str], speed: float) -> Iterator[Row]:
    """Our rows of a shape."""
    if {"alone", "rows", "engine"} & {*only}:
        model = model_of(name)
        if "alone" in only:
            yield from (steps(name, model, 1, held, speed) for held in HELD)
            yield generated(name, model)
        if "rows" in only:
            yield from (steps(name, model, count, HELD[0], speed) for count in ROWS[name])
        if "engine" in only:
            yield from (served(name, model, count, "greedy") for count in ENGINE_ROWS[name])
            yield from (served(name, model, 64, how) for how in ("temperature", "top-p 0.9"))
    if "blocks" in only:
        for format in BLOCKS:
            put_blocks(model := model_of(name), format)
            for count in (1, 8):
                yield steps(name, model, count, 512, speed, f", {format.name}")


if __name__ == "__main__":
    sys.exit(main())
