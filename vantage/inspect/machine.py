"""Machines, as far as a roofline needs them: operations a second, and bytes a second from memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import final

import torch

from vantage.errors import BadInput, Refused, unknown
from vantage.figures.html import page_table
from vantage.spec.devices import best_device

TERA = 1e12
SIDE, COPIED = 1024, 2**26  # of what measures a processor: a square's side, and bytes
GPU_SIDE, GPU_COPIED = 8192, 2**30


@final
@dataclass(frozen=True)
class Machine:
    """``flops``: dense operations a second by dtype (a multiply and an add are two). ``bandwidth``: bytes a second."""

    name: str
    flops: dict[str, float]
    bandwidth: float

    def _repr_html_(self) -> str:
        rows = [[f"operations a second, {dtype}", f"{n:.3g}"] for dtype, n in self.flops.items()]
        return page_table(self.name, ["what", "number"], [*rows, ["bytes a second", f"{self.bandwidth:.3g}"]])

    def speed(self, dtype: str) -> float:
        if dtype not in self.flops:
            raise Refused(f"{self.name} has no number for {dtype}: there are {', '.join(self.flops)}")
        return self.flops[dtype]

    def seconds(self, operations: float, bytes_: float, dtype: str) -> float:
        """The roofline: whichever takes longer, computing or reading."""
        return max(operations / self.speed(dtype), bytes_ / self.bandwidth)

    def ridge(self, dtype: str) -> float:
        """Operations a byte above which computing takes longer than reading."""
        return self.speed(dtype) / self.bandwidth


def _gpu(name: str, half: float, single: float, double: float, bandwidth: float) -> Machine:
    flops = {"bfloat16": half * TERA, "float16": half * TERA, "float32": single * TERA, "float64": double * TERA}
    return Machine(name, flops, bandwidth * TERA)


# From the makers' data sheets: dense tensor cores for half precision, plain cores for float32.
MACHINES = {
    "h200": _gpu("h200", 989.4, 66.9, 66.9, 4.8),
    "h100": _gpu("h100", 989.4, 66.9, 66.9, 3.35),
    "a100": _gpu("a100", 312.0, 19.5, 19.5, 2.039),
}


def machine(name: str, dtype: str = "float32") -> Machine:
    """A machine by name, or "measure": this one."""
    if name == "measure":
        return measured(dtype)
    if name not in MACHINES:
        raise BadInput(f"{unknown('machine', name, MACHINES)}, or measure for this one")
    return MACHINES[name]


def measured(dtype: str = "float32", device: str | None = None, size: int | None = None, rounds: int = 5) -> Machine:
    """This machine: the best of a few square products, and of a few copies too large for any cache.

    ``size``: the side of the square. A GPU needs a large one: a small product is over before it is under way.
    """
    device = device or best_device()
    kind, gpu = floating(dtype), device.startswith(("cuda", "mps"))
    size = size or (GPU_SIDE if gpu else SIDE)
    # Random numbers: a product of equal ones takes less power, and a GPU then runs faster than on any real work.
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    big = torch.ones(GPU_COPIED if gpu else COPIED, dtype=torch.uint8, device=device)
    other = torch.empty_like(big)

    def best(run: Callable[[], object]) -> float:
        times = []
        for _ in range(rounds):
            _wait(device)
            start = perf_counter()
            run()
            _wait(device)
            times.append(perf_counter() - start)
        return min(times)

    product = best(lambda: a @ b)
    copy = best(lambda: other.copy_(big))
    return Machine(f"this machine ({device})", {dtype: 2 * size**3 / product}, 2 * big.numel() / copy)


def floating(name: torch.dtype | str) -> torch.dtype:
    """A dtype by its name, or as it is."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else name
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise BadInput(f"dtype={name!r}: use one of float64, float32, bfloat16, float16")
    return dtype


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device.startswith("mps"):
        torch.mps.synchronize()
