"""Which candidate of a kernel for causal self-attention is fastest: ``python -m bench.causal_variants`` (needs a GPU).

Compiles all variants of ``kernels.py`` in processes side by side, compares one of each kind with float64, times all of
them, and beside them what runs today (kernel by kernel) and cuDNN without position. About two minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

LOG2E = 1.4426950408889634
NONE, SLOPE, LOG, TABLE = 0, 1, 2, 4  # forms, as gpu/tiles.py has them
NAMES = {NONE: "none", SLOPE: "slope", LOG: "log", TABLE: "table"}
KERNELS = ("attend", "query_gradients", "key_gradients")
BEFORE, LINE = 128, 512  # numbers of a table's line before distance 0, and in all
FURTHEST = 128  # distance of a table's last number
FAR = 256  # distance from which on a logarithm is a cubic in each tile


class Variant(NamedTuple):
    """How a kernel is compiled."""

    rows: int = 64
    cols: int = 64
    warps: int = 4
    stages: int = 2
    registers: int | None = None  # at most; ``None``: as the assembler likes
    lookup: int = 1
    split: int = 0
    product: int = 0


class Problem(NamedTuple):
    """Inputs, and room for outputs."""

    form: int
    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    numbers: tuple[Tensor, ...]  # of the bias, as float32
    beyond: int
    out: Tensor
    lse: Tensor
    delta: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    sums: tuple[Tensor, Tensor]


def problem(
    form: int, B: int, H: int, G: int, T: int, D: int, *, dtype: torch.dtype, device: str, seed: int = 0, far: int = FAR
) -> Problem:
    g = torch.Generator().manual_seed(seed)

    def normal(heads: int) -> Tensor:
        return torch.randn(B, T, heads, D, generator=g).to(device, dtype).transpose(1, 2)

    q, k, v, grad = normal(H), normal(G), normal(G), normal(H)
    numbers: tuple[Tensor, ...] = ()
    beyond = 1
    if form == SLOPE:
        numbers = (torch.rand(H, generator=g) / 3,)
    elif form == LOG:
        numbers, beyond = (2 * torch.rand(H, generator=g), torch.rand(H, generator=g)), far
    elif form == TABLE:
        numbers, beyond = (torch.randn(H, FURTHEST + 1, generator=g),), FURTHEST
    lse = torch.full((B, H, T), torch.nan, device=device)
    out, dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, q, k, v))
    sums = torch.full_like(lse, torch.nan), torch.full_like(lse, torch.nan)
    given = tuple(x.to(device) for x in numbers)
    return Problem(form, q, k, v, grad, given, beyond, out, lse, lse.clone(), dq, dk, dv, sums)


def bias_arguments(x: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """P0, P1 and LINES of the kernels."""
    if x.form == TABLE:
        (table,) = x.numbers
        at = (torch.arange(LINE, device=table.device) - BEFORE).clamp(0, FURTHEST)
        lines = ((table - table[:, -1:]) * LOG2E)[:, at].contiguous()
        return x.lse, table[:, -1].contiguous() * LOG2E, lines
    first = x.numbers[0] if x.numbers else x.lse
    return first, x.numbers[-1] if x.numbers else x.lse, x.lse


def strides(*tensors: Tensor) -> list[int]:
    return [step for x in tensors for step in x.stride()[:3]]


def run(name: str, x: Problem, how: Variant, bias: tuple[Tensor, Tensor, Tensor]) -> Any:
    """Launches one kernel, and returns it compiled."""
    from bench.causal_variants import kernels

    assert max(how.rows, how.cols) <= BEFORE, "a line begins so far before distance 0"
    B, H, T, D = x.q.shape
    G = x.k.shape[1]
    half = x.q.element_size() == 2 and x.q.is_cuda
    blocks = -(-T // how.rows)
    constants: dict[str, Any] = {
        "H": H, "GROUP": H // G, "D": D, "ROWS": how.rows, "COLS": how.cols, "FORM": x.form,
        "EVEN": T % max(how.rows, how.cols) == 0, "APPROXIMATE": half, "LOOKUP": how.lookup if half else 0,
        "SPLIT": how.split, "num_warps": how.warps, "num_stages": how.stages,
    }  # fmt: skip
    if how.registers:
        constants["maxnreg"] = how.registers
    sizes = (T, blocks, x.beyond, LINE, D**-0.5 * LOG2E)
    kernel: Any = getattr(kernels, name)
    if name == "attend":
        tensors = (x.q, x.k, x.v, x.out, x.lse, *bias)
        return kernel[(blocks * B * H,)](*tensors, *strides(x.q, x.k, x.v, x.out), *sizes, **constants)
    if name == "query_gradients":
        tensors = (x.q, x.k, x.v, x.out, x.grad, x.lse, x.delta, x.dq, *bias, *x.sums)
        steps = strides(x.q, x.k, x.v, x.out, x.grad, x.dq)
        constants["PRODUCT"] = how.product
        return kernel[(blocks * B * H,)](*tensors, *steps, *sizes, D**-0.5, **constants)
    tensors = (x.q, x.k, x.v, x.grad, x.lse, x.delta, x.dk, x.dv, *bias)
    return kernel[(blocks * B * G,)](
        *tensors, *strides(x.q, x.k, x.v, x.grad, x.dk, x.dv), *sizes, D**-0.5, **constants
    )


def right(x: Problem) -> tuple[Tensor, ...]:
    """Output, log-sum-exp, gradients of q, k and v, and of a logarithm's numbers, in float64."""
    q, k, v, *numbers = (y.double().detach().requires_grad_() for y in (x.q, x.k, x.v, *x.numbers))
    share, T = q.shape[1] // k.shape[1], q.shape[2]
    scores = q @ k.repeat_interleave(share, 1).mT * q.shape[3] ** -0.5
    along = torch.arange(T, device=q.device)
    distance = along[:, None] - along
    if x.form == SLOPE:
        scores = scores - numbers[0][:, None, None] * distance
    elif x.form == LOG:
        a, p = (y[:, None, None] for y in numbers)
        scores = scores - a * torch.log1p(p * distance.clamp(min=0))
    elif x.form == TABLE:
        scores = scores + numbers[0][:, distance.clamp(0, FURTHEST)]
    scores = scores.masked_fill(distance < 0, -torch.inf)
    out = scores.softmax(-1) @ v.repeat_interleave(share, 1)
    learned = numbers if x.form == LOG else []
    grads = torch.autograd.grad(out, [q, k, v, *learned], x.grad.double())
    return out.detach(), scores.logsumexp(-1).detach(), *grads


def errors(x: Problem, how: Variant) -> dict[str, float]:
    """Of each output, relative to its norm."""
    bias = bias_arguments(x)
    for name in KERNELS:
        run(name, x, how, bias)
    got = [x.out, x.lse, x.dq, x.dk, x.dv, *([y.sum((0, 2)) for y in x.sums] if x.form == LOG else [])]
    names = ("out", "lse", "q", "k", "v", "a", "p")
    pairs = zip(names, got, right(x), strict=False)
    return {name: float((y.double() - z).norm() / z.norm()) for name, y, z in pairs}


def variants() -> list[tuple[str, int, Variant]]:
    shapes = ((64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (64, 128, 4, 2), (128, 128, 8, 2))
    some = [Variant(*shape, split=split) for shape in shapes for split in (0, 1)]
    some += [Variant(registers=n, split=split) for n in (128, 168) for split in (0, 1)]
    some += [Variant(128, 64, 8, registers=128, split=split) for split in (0, 1)]
    chosen = []
    for form, name, how in itertools.product((TABLE, LOG, NONE), KERNELS, some):
        chosen.append((name, form, how))
        if form == TABLE:
            chosen.append((name, form, how._replace(lookup=0)))
        if form == LOG and name == "query_gradients":
            chosen.append((name, form, how._replace(product=1)))
    return chosen


def compiled(jobs: list[tuple[str, int, Variant]], width: int) -> list[tuple[str, int, Variant, str]]:
    """In a process of its own: runs each variant once, so that Triton keeps it. Last: registers, spills and bytes."""
    told = []
    for name, form, how in jobs:
        x = problem(form, 1, 12, 12, 1024, width, dtype=torch.bfloat16, device="cuda")
        try:
            made = run(name, x, how, bias_arguments(x))
            torch.cuda.synchronize()
            told.append((name, form, how, f"{made.n_regs} {made.n_spills} {made.metadata.shared}"))
        except Exception as error:  # a shape that does not fit: said, and left out
            told.append((name, form, how, f"failed: {error}"[:120]))
    return told


def microseconds(call: Any, calls: int = 20) -> float:
    call()
    best = float("inf")
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / calls * 1e3)
    return best


def today(x: Problem) -> str:
    """What ``fused`` takes, forward and backward, kernel by kernel."""
    from torch.profiler import ProfilerActivity, profile

    from vantage.kernels.fused import Fused
    from vantage.spec.forms import DistanceTable, LogDistance
    from vantage.spec.masks import Causal
    from vantage.spec.parts import Need, View
    from vantage.spec.positions import Positions

    q, k, v, *numbers = (y.detach().requires_grad_() for y in (x.q, x.k, x.v, *x.numbers))
    bias = {NONE: lambda: None, LOG: lambda: LogDistance(*numbers), TABLE: lambda: DistanceTable(numbers[0], 0)}[x.form]
    pos = Positions.arange(q.shape[0], q.shape[2], device=q.device)
    need = Need(Causal(), q.shape[3] ** -0.5, bias=bias())

    def step() -> None:
        Fused()(q, View(k, v, pos), pos.against(pos), need).out.backward(x.grad)

    step()
    with profile(activities=[ProfilerActivity.CUDA]) as kept:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    ran = [e for e in kept.key_averages() if e.self_device_time_total > 0 and not e.key.startswith("cuda")]
    parts = sorted(((e.self_device_time_total / 10, e.key[:40]) for e in ran), reverse=True)
    return f"{sum(us for us, _ in parts):.0f} µs: " + "; ".join(f"{name} {us:.1f}" for us, name in parts[:7])


def cudnn(x: Problem) -> str:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (y.detach().requires_grad_() for y in (x.q, x.k, x.v))

    def forward() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        both = microseconds(lambda: torch.autograd.grad(forward(), (q, k, v), x.grad))
        return f"{microseconds(forward):.1f} forward, {both:.1f} forward and backward, µs"


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m bench.causal_variants", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64, help="of a head; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--shown", type=int, default=10, help="variants of a kernel; default: %(default)s")
    args = parser.parse_args()
    begun, n, jobs = time.perf_counter(), 2 * args.processes, variants()
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        parts = pool.starmap(compiled, [(jobs[i::n], args.width) for i in range(n)], chunksize=1)
    print(f"{len(jobs)} variants compiled in {time.perf_counter() - begun:.0f} s", flush=True)
    kinds = [Variant(), Variant(split=1, product=1), Variant(128, 64, 8), Variant(64, 128), Variant(lookup=0)]
    for form, how, (G, T) in itertools.product((NONE, SLOPE, LOG, TABLE), kinds, ((4, 1024), (2, 1000))):
        x = problem(form, 2, 4, G, T, args.width, dtype=torch.bfloat16, device="cuda", seed=7)
        found = " ".join(f"{name} {e:.1e}" for name, e in errors(x, how).items())
        print(f"error {NAMES[form]} G{G} T{T} {tuple(how)}: {found}", flush=True)
    size = (args.batch, args.heads, args.heads, args.tokens, args.width)
    problems = {form: problem(form, *size, dtype=torch.bfloat16, device="cuda") for form in (NONE, LOG, TABLE)}
    print("cuDNN without position:", cudnn(problems[NONE]))
    for form, x in problems.items():
        print(f"fused today, {NAMES[form]}:", today(x))
    print("times in µs; rows cols warps stages registers lookup split product; registers spills bytes")
    told = sorted((job for part in parts for job in part), key=lambda job: (job[1], job[0]))
    for (form, name), group in itertools.groupby(told, key=lambda job: (job[1], job[0])):
        print(f"{NAMES[form]}, {name}")
        for us, how, used in times_of(name, problems[form], [job[2:] for job in group])[: args.shown]:
            print(f"    {us:8.1f}  {how}  {used}", flush=True)


def times_of(name: str, x: Problem, made: list[tuple[Variant, str]]) -> list[tuple[float, tuple[Any, ...], str]]:
    """Of the variants that compiled, the fastest first."""
    bias = bias_arguments(x)
    for kernel in KERNELS[:2]:  # what the others read
        run(kernel, x, Variant(), bias)
    times = []
    for how, used in made:
        if used.startswith("failed"):
            print("   ", tuple(how), used)
        else:
            times.append((microseconds(functools.partial(run, name, x, how, bias)), tuple(how), used))
    return sorted(times, key=lambda one: one[0])
