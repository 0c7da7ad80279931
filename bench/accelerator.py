"""``python -m bench.accelerator``: attention with each position encoding on a GPU, beside FlexAttention and cuDNN.

Three contestants in one run: ours (``kernel="auto"``), FlexAttention written by hand, and cuDNN's attention without any
position, of which every row is a share. Operations count visible pairs only. What layers of a pass share (ranges of
tiles, masks) is made once and not timed; "first call" is what compiling takes. Results go to ``bench/results``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vantage.kernels import chooser
from vantage.position import Rope, Shifted, TransformerXL
from vantage.spec.forms import DistanceTable, LogDistance, PowerDistance, QueryAndKey, RowTable, Slope
from vantage.spec.masks import Causal, SameSegment, Window
from vantage.spec.parts import BiasInputs, Encoding, Need, Pointwise, Shape, View, chain, shift_of
from vantage.spec.positions import Positions

RESULTS = Path(__file__).parent / "results"
CALLS, REPEATS = 10, 3  # between two events, and of those the median
BACKWARD = 2.5  # operations of the way back, of those forward
TABLE = 128  # distances of T5
REACH = 1024


@dataclass(frozen=True)
class Size:
    batch: int
    heads: int
    kv_heads: int
    length: int
    width: int

    @property
    def name(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        return f"B{self.batch} H{heads} N{self.length} D{self.width}"


SIZES = (Size(4, 16, 16, 4096, 128), Size(1, 16, 16, 16384, 128), Size(4, 32, 8, 4096, 128), Size(4, 16, 16, 4096, 64))


@dataclass
class Row:
    """One encoding at one size: milliseconds of each contestant, forward and forward with backward."""

    size: str
    row: str
    kernel: str
    pairs: int
    operations: float  # forward
    first_call: float  # seconds
    extra_memory: float  # bytes beyond inputs, outputs and their gradients
    milliseconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class Inputs:
    """Random tensors of one size."""

    size: Size

    def __post_init__(self) -> None:
        s = self.size

        def normal(heads: int) -> Tensor:
            x = torch.randn(s.batch, s.length, heads, s.width, device="cuda", dtype=torch.bfloat16)
            return x.transpose(1, 2).requires_grad_()

        self.q, self.k, self.v = normal(s.heads), normal(s.kv_heads), normal(s.kv_heads)
        self.grad = torch.randn(s.batch, s.length, s.heads, s.width, device="cuda", dtype=torch.bfloat16).transpose(
            1, 2
        )


def documents(size: Size) -> Positions:
    """Rows of documents of 512 to 4,096 tokens."""
    g = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(size.batch):
        row: list[int] = []
        while sum(row) < size.length:
            row.append(min(int(torch.randint(512, 4097, (1,), generator=g)), size.length - sum(row)))
        rows.append(row)
    return Positions.packed(rows).to("cuda")


def gathered(size: Size) -> Positions:
    """Rising positions with gaps, as randomised positions are."""
    steps = torch.randint(1, 4, (size.batch, size.length), generator=torch.Generator().manual_seed(0))
    pos = steps.cumsum(1)
    order = torch.arange(size.length).expand_as(pos)
    at = Positions.of(pos, order=order)
    return at.to("cuda")


@dataclass(frozen=True)
class Task:
    """What a row asks of a kernel."""

    name: str
    bias: Callable[[Size], Pointwise | None] = lambda size: None
    window: int | None = None
    places: Callable[[Size], Positions] | None = None
    softcap: float | None = None
    sinks: bool = False
    rope: bool = False
    encoding: Encoding | None = None  # whose bias is made anew in every call, and counted
    flex: bool = True  # FlexAttention by hand has this row
    by_keys: bool = True  # FlexAttention's way back takes less than seconds


def learned(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda").requires_grad_()


def slopes(size: Size) -> Slope:
    return Slope(torch.rand(size.heads, device="cuda") / 2)


TASKS = (
    Task("none"),
    Task("RoPE, its pass counted", rope=True, flex=False),
    Task("ALiBi", slopes),
    Task("documents", places=documents),
    Task("ALiBi, gathered positions", slopes, places=gathered, flex=False),
    Task("T5", lambda s: DistanceTable(learned(s.heads, TABLE + 1), 0), by_keys=False),
    Task("softcap", softcap=20.0),
    Task("sinks", sinks=True, flex=False),
    Task("KERPLE log", lambda s: LogDistance(learned(s.heads), learned(s.heads)), by_keys=False),
    Task("KERPLE power", lambda s: PowerDistance(learned(s.heads), learned(s.heads)), flex=False),
    Task("Shaw, keys", lambda s: RowTable(learned(s.batch, s.heads, s.length, 33), -16), flex=False),
    Task("FoX", lambda s: QueryAndKey(*(learned(s.batch, s.heads, s.length) for _ in range(2))), flex=False),
    Task(f"window {REACH:,}", window=REACH),
    Task("Transformer-XL, W_r R counted", encoding=TransformerXL(), flex=False),
    Task("shifted positions", encoding=Shifted(), flex=False),
)


def positions_of(task: Task, size: Size) -> Positions:
    return Positions.arange(size.batch, size.length, device="cuda") if task.places is None else task.places(size)


def visible_pairs(task: Task, size: Size, at: Positions) -> int:
    n = size.length
    if task.name == "documents":
        rank = (at.order - at.segment)[at.filled]  # pyright: ignore[reportOptionalOperand]
        return int((rank + 1).sum())
    each = min(n, task.window or n)
    return size.batch * (each * (each + 1) // 2 + (n - each) * each)


def ours(task: Task, size: Size, x: Inputs, at: Positions) -> tuple[Callable[[], Tensor], list[Tensor], str]:
    bias = task.bias(size)
    sinks = learned(size.heads) if task.sinks else None
    mask = Causal() if task.window is None else Causal() & Window(task.window)
    mask = mask & SameSegment() if task.name == "documents" else mask
    need = Need(mask, size.width**-0.5, task.softcap, bias, sinks)
    choose = chooser("auto")
    pair = at.against(at)
    shape = Shape(size.heads * size.width, size.heads, size.kv_heads, size.width, size.width, size.width)
    turn = Rope().build(shape).to("cuda") if task.rope else None

    if task.encoding is not None:
        return by_encoding(task.encoding, shape, need, x, at)

    def run() -> Tensor:
        q, k = (x.q, x.k) if turn is None else (turn.query(x.q, at), turn.key(x.k, at))  # pyright: ignore[reportCallIssue]
        view = View(k, x.v, at)
        return choose(need, q, view)(q, view, pair, need).out

    leaves = [x.q, x.k, x.v] + [t for t in vars(bias or object).values() if isinstance(t, Tensor) and t.requires_grad]
    kernel = choose(need, x.q, View(x.k, x.v, at)).name
    return run, leaves + ([] if sinks is None else [sinks]), kernel


def by_encoding(
    encoding: Encoding, shape: Shape, need: Need, x: Inputs, at: Positions
) -> tuple[Callable[[], Tensor], list[Tensor], str]:
    """An encoding that acts on queries and scores, with all that it makes of its parameters in every pass."""
    parts, choose, pair = encoding.parts(causal=True), chooser("auto"), at.against(at)
    qk = [transform.build(shape).to("cuda", torch.bfloat16) for transform in parts.qk]
    assert parts.bias is not None
    bias = parts.bias.build(shape).to("cuda", torch.bfloat16)
    view = View(x.k, x.v, at)

    def ask() -> tuple[Tensor, Need]:
        q = chain(qk, "query", x.q, at)
        inputs = BiasInputs(x.q, q, x.k, at, at, need.scale, shift=shift_of(qk))
        return q, replace(need, bias=bias.at(inputs))  # pyright: ignore[reportCallIssue] (a score bias)

    def run() -> Tensor:
        q, asked = ask()
        return choose(asked, q, view)(q, view, pair, asked).out

    q, asked = ask()
    leaves = [x.q, x.k, x.v, *(p for module in (*qk, bias) for p in module.parameters())]
    return run, leaves, choose(asked, q, view).name


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


def milliseconds(call: Callable[[], Any], calls: int = CALLS) -> float:
    call()
    samples = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) / calls)
    return sorted(samples)[REPEATS // 2]


def both_ways(run: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor, calls: int = CALLS) -> tuple[float, float]:
    """Forward as inference runs it, and forward with backward."""
    with torch.no_grad():
        forward = milliseconds(run, calls)
    return forward, milliseconds(lambda: torch.autograd.grad(run(), leaves, grad), calls)


def measure(task: Task, size: Size, *, flex: bool) -> Row:
    x, at = Inputs(size), positions_of(task, size)
    pairs = visible_pairs(task, size, at)
    run, leaves, kernel = ours(task, size, x, at)
    row = Row(size.name, task.name, kernel, pairs, 4.0 * pairs * size.heads * size.width, 0.0, 0.0)
    started = time.perf_counter()
    torch.autograd.grad(run(), leaves, x.grad)
    torch.cuda.synchronize()
    row.first_call = time.perf_counter() - started
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    grads = torch.autograd.grad(run(), leaves, x.grad)
    results = sum(t.numel() * t.element_size() for t in (*grads, x.grad))  # x.grad stands for the output
    row.extra_memory = torch.cuda.max_memory_allocated() - before - results
    del grads
    row.milliseconds["ours"] = both_ways(run, leaves, x.grad)
    if task.name == "none":
        attempt(row, "cuDNN", lambda: both_ways(cudnn(x), [x.q, x.k, x.v], x.grad))
    if flex and task.flex:

        def hand() -> tuple[float, float]:
            torch._dynamo.reset()
            made, of = by_hand(task, size, x, at)
            return both_ways(made, of, x.grad, CALLS if task.by_keys else 1)

        attempt(row, "FlexAttention", hand)
    return row


def attempt(row: Row, name: str, call: Callable[[], tuple[float, float]]) -> None:
    """A contestant that cannot do it is told so, and the others go on."""
    try:
        row.milliseconds[name] = call()
    except Exception as e:
        row.failed[name] = f"{type(e).__name__}: {str(e)[:200]}"


def rates(row: Row, name: str) -> tuple[float, float]:
    """TFLOP/s, forward and forward with backward."""
    forward, both = row.milliseconds[name]
    return row.operations / forward / 1e9, row.operations * (1 + BACKWARD) / both / 1e9


WIDTHS = (-22, -26, -7, 15, 11, 11, 11, 7, 9)
HEADINGS = ("size", "row", "kernel", "ours, ms", "TFLOP/s", "share", "Flex", "first", "memory")


def line(cells: Sequence[str]) -> str:
    return " ".join(cell.ljust(-n) if n < 0 else cell.rjust(n) for cell, n in zip(cells, WIDTHS, strict=True))


def shown(row: Row, best: tuple[float, float]) -> Iterator[str]:
    """A row as it is printed; ``best``: what cuDNN reached at this size."""
    forward, both = rates(row, "ours")
    flex = "/".join(f"{x:.0f}" for x in rates(row, "FlexAttention")) if "FlexAttention" in row.milliseconds else "-"
    times = "/".join(f"{x:.3f}" for x in row.milliseconds["ours"])
    share = f"{forward / best[0]:.2f} {both / best[1]:.2f}"
    memory = f"{row.extra_memory / 2**20:.0f}MiB"
    speed = f"{forward:.0f}/{both:.0f}"
    yield line((row.size, row.row, row.kernel, times, speed, share, flex, f"{row.first_call:.1f}s", memory))
    if "cuDNN" in row.milliseconds:
        anchor = "/".join(f"{x:.0f}" for x in rates(row, "cuDNN"))
        yield line((row.size, "cuDNN without position", "", "", anchor, "", "", "", ""))
    yield from (f"    {name} failed: {why}" for name, why in row.failed.items())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator", description=__doc__)
    parser.add_argument("--no-flex", action="store_true", help="leave FlexAttention out: it compiles for minutes")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the sizes; default: all")
    parser.add_argument("--only", default="", help="rows whose name has this in it, and the one without position")
    parser.add_argument("--out", type=Path, default=RESULTS / "accelerator.json", help="the JSON; default: %(default)s")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("this bench needs a CUDA GPU", file=sys.stderr)
        return 2
    versions = {"torch": torch.__version__, "python": platform.python_version(), "gpu": torch.cuda.get_device_name()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    print(line(HEADINGS), flush=True)
    for n, size in enumerate(SIZES[: args.sizes]):
        best = (float("nan"), float("nan"))
        for task in TASKS:
            if task.name != "none" and args.only not in task.name:
                continue
            try:
                row = measure(task, size, flex=not args.no_flex and n < 2)
            except Exception as e:
                print(f"{size.name} {task.name}: {type(e).__name__}: {str(e)[:300]}", file=sys.stderr, flush=True)
                continue
            rows.append(row)
            best = rates(row, "cuDNN") if "cuDNN" in row.milliseconds else best
            print("\n".join(shown(row, best)), flush=True)  # at once: a run may be cut short
            args.out.write_text(json.dumps({"versions": versions, "rows": [asdict(row) for row in rows]}, indent=1))
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
