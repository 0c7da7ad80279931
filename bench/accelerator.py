"""``python -m bench.accelerator``: attention with each position encoding on a GPU, beside FlexAttention and cuDNN.

Contestants in one run: ours (``kernel="auto"``) without cuDNN's front end and, where that is installed, with it;
FlexAttention written by hand; and cuDNN's attention without any position, of which every row is a share. Operations
count visible pairs only. What layers of a pass share (ranges of tiles, masks) is made once and not timed. Every shape
has come in enough passes that plans are made; "first" is what compiling and planning takes. Calls are timed twice: as a
host launches them, which a busy one may do more slowly than a GPU works, and as graphs ("device"), where the host takes
no part. Results go to ``bench/results``.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.accelerator_tasks import (
    CHUNKS,
    SIZES,
    TABLE,
    TASKS,
    Inputs,
    Size,
    Task,
    learned,
    positions_of,
    visible_pairs,
)
from bench.accelerator_timing import CALLS, on_device, side_by_side
from vantage.kernels import chooser, kernel_named
from vantage.kernels.cudnn import cannot_run
from vantage.kernels.recurring import PASSES
from vantage.position import Rope
from vantage.spec.forms import DistanceTable, LogDistance, Slope
from vantage.spec.masks import Causal, SameSegment, Window
from vantage.spec.parts import BiasInputs, Need, Shape, View
from vantage.spec.positions import Positions
from vantage.spec.transforms import chain_both, shift_of

RESULTS = Path(__file__).parent / "results"
BACKWARD = 2.5  # operations of the way back, of those forward


@dataclass(frozen=True)
class Times:
    """Milliseconds, and those of cuDNN without position in turn with it. nan: not run."""

    forward: float
    both: float = float("nan")  # forward and backward
    cudnn_forward: float = float("nan")
    cudnn_both: float = float("nan")
    device: dict[str, float] = field(default_factory=dict)  # the same four as graphs, where a graph can hold them


@dataclass
class Row:
    """One encoding at one size."""

    size: str
    row: str
    pairs: int
    operations: float  # forward
    kernels: dict[str, str] = field(default_factory=dict)  # ours: which ran forward and which with gradients
    first_call: dict[str, float] = field(default_factory=dict)  # seconds
    extra_memory: dict[str, float] = field(default_factory=dict)  # bytes beyond inputs, outputs and their gradients
    times: dict[str, Times] = field(default_factory=dict)  # of each contestant
    plain: float = 0.0  # operations of cuDNN without position, forward
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class Ours:
    """A call of ours as a layer makes it."""

    task: Task
    size: Size
    x: Inputs
    at: Positions

    def __post_init__(self) -> None:
        task, size = self.task, self.size
        bias, sinks = task.bias(size), learned(size.heads) if task.sinks else None
        mask = Causal() if task.window is None else Causal() & Window(task.window)
        mask = mask & SameSegment() if task.name == "documents" else mask
        self.need = Need(mask, size.width**-0.5, task.softcap, bias, sinks)
        shape = Shape(size.heads * size.width, size.heads, size.kv_heads, size.width, size.width, size.width)
        parts = None if task.encoding is None else task.encoding.parts(causal=True)
        transforms = [Rope()] if task.rope else [] if parts is None else parts.qk
        self.transforms = [transform.build(shape).to("cuda", torch.bfloat16) for transform in transforms]
        tables = [t for t in vars(bias or object).values() if isinstance(t, Tensor) and t.requires_grad]
        self.biases = [
            part.build(shape).to("cuda", torch.bfloat16)
            for part in ((parts.bias, parts.value_bias) if parts else ())
            if part is not None
        ]
        self.leaves = [self.x.q, self.x.k, self.x.v, *tables] + ([] if sinks is None else [sinks])
        self.leaves += [p for module in (*self.transforms, *self.biases) for p in module.parameters()]
        self.choose, self.kernel, self.given_up = chooser("auto"), "", 0

    def __call__(self, at: Positions | None = None) -> Tensor:
        at = self.at if at is None else at
        queries = at if not self.size.past else at.once("queries", lambda: at.narrow(self.size.past, self.size.length))
        q, k = chain_both(self.transforms, self.x.q, self.x.k, at) if self.transforms else (self.x.q, self.x.k)
        # bytes of what a transform was given: only these inputs hold it, a layer lets it go
        self.given_up = sum(x.numel() * x.element_size() for x, y in ((self.x.q, q), (self.x.k, k)) if x is not y)
        view, need = View(k, self.x.v, at), self.need
        if self.biases:
            bias, *values = self.biases
            inputs = BiasInputs(self.x.q, q, k, queries, at, need.scale, shift=shift_of(self.transforms))
            need = replace(need, bias=bias.at(inputs), value_bias=values[0] if values else None)
        kernel = self.choose(need, q, view)
        self.kernel = kernel.name
        return kernel(q, view, queries.against(at), need).out

    def come_again(self, *, back: bool) -> None:
        """As many passes as make a plan worth its time, and one more that runs it."""
        for _ in range(PASSES + 1):
            out = self(replace(self.at, memo={}))
            if back:
                torch.autograd.grad(out, self.leaves, self.x.grad)


@contextmanager
def front_end(used: bool) -> Iterator[None]:
    """With cuDNN's front end or without."""
    kernel: Any = kernel_named("cudnn")
    if not used:
        kernel.auto = lambda device: False
    try:
        yield
    finally:
        kernel.__dict__.pop("auto", None)


def cudnn(x: Inputs) -> Callable[[], Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                x.q, x.k, x.v, is_causal=True, enable_gqa=x.q.shape[1] != x.k.shape[1]
            )

    return run


def by_hand(task: Task, size: Size, x: Inputs, at: Positions) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """FlexAttention as its users write it."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    bias = task.bias(size)
    segment = at.segment

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        see = i >= j
        if task.window is not None:
            see = see & (i - j < task.window)
        return see if segment is None else see & (segment[b, i] == segment[b, j])

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if task.softcap is not None:
            return task.softcap * torch.tanh(s / task.softcap)
        if isinstance(bias, Slope):
            return s - bias.slopes[h] * (i - j)
        if isinstance(bias, DistanceTable):
            return s + bias.values[h, (i - j).clamp(0, TABLE)]
        assert isinstance(bias, LogDistance)
        return s - bias.a[h] * torch.log1p(bias.p[h] * (i - j).abs())

    modified = task.softcap is not None or bias is not None
    rows = None if segment is None else size.batch
    mask = torch.compile(create_block_mask)(seen, rows, None, size.length, size.length, device="cuda")
    run = torch.compile(flex_attention, dynamic=False)
    leaves = [x.q, x.k, x.v] + [t for t in vars(bias or object).values() if isinstance(t, Tensor) and t.requires_grad]
    grouped = size.heads != size.kv_heads
    return lambda: run(  # pyright: ignore[reportReturnType]
        x.q, x.k, x.v, score_mod=score if modified else None, block_mask=mask, enable_gqa=grouped
    ), leaves


def both_ways(run: Callable[[], Tensor], leaves: list[Tensor], x: Inputs, calls: int = CALLS) -> Times:
    """Forward as inference runs it, and forward with backward, beside cuDNN without position."""
    anchor = cudnn(x)
    ways = {"it": run, "cuDNN": anchor}
    with torch.no_grad():
        forward, device_forward = side_by_side(ways, calls), on_device(ways)
    ways = {
        "it": lambda: torch.autograd.grad(run(), leaves, x.grad),
        "cuDNN": lambda: torch.autograd.grad(anchor(), [x.q, x.k, x.v], x.grad),
    }
    both, device_both = side_by_side(ways, calls), on_device(ways)
    device = {"forward": device_forward.get("it"), "cudnn_forward": device_forward.get("cuDNN")}
    device |= {"both": device_both.get("it"), "cudnn_both": device_both.get("cuDNN")}
    known = {name: ms for name, ms in device.items() if ms is not None}
    return Times(forward["it"], both["it"], forward["cuDNN"], both["cuDNN"], known)


def measure_ours(row: Row, name: str, call: Ours, *, back: bool) -> None:
    started = time.perf_counter()
    with torch.no_grad():
        call.come_again(back=False)
    row.kernels[name] = call.kernel
    if back:
        call.come_again(back=True)
        row.kernels[name] += f", {call.kernel}" if call.kernel != row.kernels[name] else ""
    torch.cuda.synchronize()
    if name == WITH_FRONT_END and "cudnn" not in row.kernels[name]:
        return  # the same kernel runs without it
    row.first_call[name] = time.perf_counter() - started
    gc.collect()  # what a contestant before has left would else seem to be given back by this one
    torch.cuda.reset_peak_memory_stats()
    before, x = torch.cuda.memory_allocated(), call.x
    if back:
        results = [*torch.autograd.grad(call(), call.leaves, x.grad), x.grad]  # x.grad stands for the output
    else:
        with torch.no_grad():
            results = [call()]
    taken = torch.cuda.max_memory_allocated() - before
    if back:
        taken -= call.given_up
    row.extra_memory[name] = taken - sum(t.numel() * t.element_size() for t in results)
    del results
    if back:
        row.times[name] = both_ways(call, call.leaves, x)
    else:
        with torch.no_grad():
            row.times[name] = Times(side_by_side({"it": call})["it"])


def measure(task: Task, size: Size, *, flex: bool) -> Row:
    x, at = Inputs(size), positions_of(task, size)
    pairs = visible_pairs(task, size, at)
    row = Row(size.name, task.name, pairs, 4.0 * pairs * size.heads * size.width)
    row.plain = 4.0 * visible_pairs(TASKS[0], size, at) * size.heads * size.width
    back = not size.past  # a chunk of a prompt is read, not learned from

    def call() -> Ours:
        return Ours(task, size, x, replace(at, memo={}))  # what was worked out for another one is not known

    with front_end(used=False):
        measure_ours(row, OURS, call(), back=back)
    if cannot_run("cuda") is None:
        attempt(row, WITH_FRONT_END, lambda: measure_ours(row, WITH_FRONT_END, call(), back=back))
    if flex and task.flex and back:

        def hand() -> None:
            torch._dynamo.reset()
            made, of = by_hand(task, size, x, at)
            row.times["FlexAttention"] = both_ways(made, of, x, CALLS if task.by_keys else 1)

        attempt(row, "FlexAttention", hand)
    return row


def attempt(row: Row, name: str, call: Callable[[], None]) -> None:
    """A contestant that cannot do it is told so, and the others go on."""
    try:
        call()
    except Exception as e:
        row.failed[name] = f"{type(e).__name__}: {str(e)[:200]}"


def rates(row: Row, name: str) -> tuple[float, float]:
    """TFLOP/s, forward and forward with backward."""
    times = row.times[name]
    return row.operations / times.forward / 1e9, row.operations * (1 + BACKWARD) / times.both / 1e9


def anchor_rates(row: Row, name: str) -> tuple[float, float]:
    """The same of cuDNN without position, measured beside it."""
    times = row.times[name]
    return row.plain / times.cudnn_forward / 1e9, row.plain * (1 + BACKWARD) / times.cudnn_both / 1e9


def device_shares(row: Row, name: str) -> str:
    """Of cuDNN without position, both as graphs."""
    found = row.times[name].device
    shares = [
        f"{row.operations / found[way] / (row.plain / found[f'cudnn_{way}']):.2f}"
        for way in ("forward", "both")
        if way in found and f"cudnn_{way}" in found
    ]
    return " ".join(shares) or "-"


OURS, WITH_FRONT_END = "ours", "with the front end"
WIDTHS = (-32, -26, -12, 15, 11, 11, 11, 11, 11, 7, 9)
HEADINGS = ("size", "row", "kernel", "ours, ms", "TFLOP/s", "share", "device", "cuDNN", "Flex", "first", "memory")


def line(cells: Sequence[str]) -> str:
    return " ".join(cell.ljust(-n) if n < 0 else cell.rjust(n) for cell, n in zip(cells, WIDTHS, strict=True))


def shown(row: Row) -> Iterator[str]:
    """A row as it is printed, a line for each way of ours."""
    flex = "/".join(f"{x:.0f}" for x in rates(row, "FlexAttention")) if "FlexAttention" in row.times else "-"
    for name in (OURS, WITH_FRONT_END):
        if name not in row.times:
            continue
        speeds, anchors, times = rates(row, name), anchor_rates(row, name), row.times[name]
        share = " ".join(f"{speed / anchor:.2f}" for speed, anchor in zip(speeds, anchors, strict=True))
        yield line(
            (
                row.size,
                row.row,
                row.kernels[name],
                f"{times.forward:.3f}/{times.both:.3f}",
                "/".join(f"{x:.0f}" for x in speeds),
                share,
                device_shares(row, name),
                "/".join(f"{x:.0f}" for x in anchors),
                flex,
                f"{row.first_call[name]:.1f}s",
                f"{row.extra_memory[name] / 2**20:.0f}MiB",
            )
        )
    yield from (f"    {name} failed: {why}" for name, why in row.failed.items())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator", description=__doc__)
    parser.add_argument("--no-flex", action="store_true", help="leave FlexAttention out: it compiles for minutes")
    every = range(1, len(SIZES) + 1)
    parser.add_argument(
        "--sizes", type=int, nargs="+", choices=every, default=list(every), metavar="N",
        help=f"which of the sizes: {', '.join(f'{n} {size.name}' for n, size in enumerate(SIZES, 1))}; default: all",
    )  # fmt: skip
    names = [task.name for task in TASKS]
    parser.add_argument(
        "--rows", nargs="+", choices=names, metavar="NAME", help=f"of: {'; '.join(names)}; default: all"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "accelerator.json", help="the JSON; default: %(default)s")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("this bench needs a CUDA GPU", file=sys.stderr)
        return 2
    versions = {"torch": torch.__version__, "python": platform.python_version(), "gpu": torch.cuda.get_device_name()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    print(line(HEADINGS), flush=True)
    chosen = [task for task in TASKS if not args.rows or task.name in args.rows]
    torch.cuda.set_stream(torch.cuda.Stream())  # the default one cannot be captured
    for size in (*(SIZES[n - 1] for n in args.sizes), *CHUNKS):
        for task in TASKS[:1] if size.past else chosen:
            try:
                row = measure(task, size, flex=not args.no_flex and size in SIZES[:2])
            except Exception as e:
                print(f"{size.name} {task.name}: {type(e).__name__}: {str(e)[:300]}", file=sys.stderr, flush=True)
                continue
            rows.append(row)
            print("\n".join(shown(row)), flush=True)  # at once: a run may be cut short
            args.out.write_text(json.dumps({"versions": versions, "rows": [asdict(row) for row in rows]}, indent=1))
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
