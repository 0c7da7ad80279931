"""The cells of the matrix through kernels that the matrix itself cannot run: those of a GPU, and ``auto``.

Such a kernel does not do everything. What it refuses is counted with its reason; what it does must be what the float64
reference gives, in float32 within the matrix's own bound. In half precision three sharp layers round too much for one
bound: a cell may then be some times as far off as the same cell through the reference kernel in that precision. Layers
that hand a state on can make any difference out of one rounding: what they give with weights rounded otherwise is a
measure as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from multiprocessing import TimeoutError, get_context
from threading import TIMEOUT_MAX
from time import monotonic

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor

from vantage.conformance.accepted_cells import accepted_cells
from vantage.conformance.covering import Cell, cover
from vantage.conformance.factors import NUMBER, allowed_by, caches, factors, rules
from vantage.conformance.matrix import TOLERANCE, check_usable
from vantage.conformance.scenarios import Bench, outcomes, run_cell
from vantage.errors import BadInput, KernelRefused
from vantage.kernels import kernel_named
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair

HALF = (torch.bfloat16, torch.float16)
TOLERANCES = {torch.bfloat16: 0.05, torch.float16: 0.01}  # logits are of size 1 to 10
MOST_AT_ONCE = 12  # cells that a process takes
TIMES_REFERENCE = 3.0  # as far off as the reference kernel in half precision, which rounds elsewhere
ROUNDED_ANEW = 4  # draws of weights, where that is not enough


@dataclass(frozen=True)
class KernelCell:
    """A cell and what became of it."""

    cell: Cell
    error: float = 0.0  # the largest difference of any logit; inf when it raised
    allowed: float = 0.0
    refused: str = ""  # why the kernel does not do it
    raised: str = ""

    @property
    def ok(self) -> bool:
        return bool(self.refused) or self.error <= self.allowed

    @property
    def name(self) -> str:
        return "/".join(self.cell)


@dataclass
class KernelReport:
    """What these kernels showed."""

    dtype: torch.dtype
    results: list[KernelCell] = field(default_factory=list)
    not_reached: int = 0  # cells for which there was no time

    @property
    def failures(self) -> list[KernelCell]:
        return [result for result in self.results if not result.ok]

    @property
    def ok(self) -> bool:
        return not self.failures and not self.not_reached

    def of(self, kernel: str) -> list[KernelCell]:
        return [result for result in self.results if result.cell[NUMBER["kernel"]] == kernel]

    def kernels(self) -> list[str]:
        return list(dict.fromkeys(result.cell[NUMBER["kernel"]] for result in self.results))

    def to_json(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            "dtype": str(self.dtype).removeprefix("torch."),
            "not reached": self.not_reached,
            "kernels": {kernel: self._counts(kernel) for kernel in self.kernels()},
            "failures": [
                {"cell": r.name, "error": r.error if isfinite(r.error) else None, "raised": r.raised}
                for r in self.failures
            ],
            "refusals": {r.name: r.refused for r in self.results if r.refused},
        }

    def table(self) -> Group:
        table = Table(title=f"Cells in {self.dtype} against the float64 reference", title_justify="left")
        for heading in ("kernel", "right", "wrong", "refused", "worst error"):
            table.add_column(heading, justify="left" if heading == "kernel" else "right")
        for kernel in self.kernels():
            *counts, worst = self._counts(kernel).values()
            table.add_row(kernel, *map(str, counts), f"{worst:.1e}")
        notes = {r.name: r.raised or f"off by {r.error:.1e}, {r.allowed:.1e} allowed" for r in self.failures}
        wrong = [Text(f"FAILED {name}: {note}") for name, note in notes.items()]
        reasons = Counter(r.refused for r in self.results if r.refused).most_common()
        if self.not_reached:
            why = "no time was left, or a kernel had failed in their process"
            wrong.append(Text(f"{self.not_reached} cells were not reached: {why}"))
        return Group(table, *wrong, *(Text(f"refused {n} times: {why}") for why, n in reasons))

    def _counts(self, kernel: str) -> dict[str, float]:
        results = self.of(kernel)
        ran = [r for r in results if not r.refused]
        return {
            "right": sum(r.ok for r in ran),
            "wrong": sum(not r.ok for r in ran),
            "refused": len(results) - len(ran),
            "worst": max((r.error for r in ran if isfinite(r.error)), default=0.0),
        }


def cells_through(kernels: Sequence[str], *, strength: int = 2, filter: str = "") -> list[Cell]:
    """The matrix's cells, each through all of these kernels. What rounds or jumps by design is left out: hard attention
    and caches of fewer bits turn a rounding into a jump, so that nothing but float64 is to be compared."""
    at = NUMBER["kernel"]
    rounded = {name for name, kind in caches().items() if not kind.exact}
    chosen = dict.fromkeys(
        (*cell[:at], kernel, *cell[at + 1 :])
        for cell in cover(factors(), strength, allowed_by(rules()))
        for kernel in kernels
        if cell[NUMBER["attention"]] != "hard" and cell[NUMBER["cache"]] not in rounded
    )
    return [cell for cell in chosen if filter in "/".join(cell)]


def run_through(
    kernels: Sequence[str],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cuda",
    filter: str = "",
    share: tuple[int, int] = (0, 1),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> KernelReport:
    """Run the matrix through kernels by name. ``share``: (i, n), every n-th cell from the i-th on, for n processes."""
    check_usable(device)
    first, step = share
    cells = cells_through(kernels, filter=filter)[first::step]
    if not cells:
        raise BadInput(f"no cell's name contains {filter!r}")
    return run_cells(cells, dtype=dtype, device=device, progress=progress)


def run_column(
    kernels: Sequence[str],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cuda",
    processes: int = 1,
    seconds: float = inf,
    smallest_first: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> KernelReport:
    """Every pair of parts that these kernels take, over several processes. Cells with the same mask and scenario go to
    one process: they ask for the same compiled kernels, which are kept on disk for the others. The largest such groups
    come first. What is not reached after so many ``seconds`` is left, and comes first with ``smallest_first``. A
    process in which a GPU's kernel has failed runs no more: every later call would fail."""
    check_usable(device)
    report, until = KernelReport(dtype), monotonic() + seconds
    context = get_context("spawn")
    with context.Pool(processes, torch.set_num_threads, (1,)) as pool:
        ask = partial(refusal, dtype=dtype, device=device)
        accepted = [accepted_cells(kernel, lambda cells: pool.map(ask, cells, chunksize=4)) for kernel in kernels]
        report.results += [KernelCell(cell, refused=why) for each in accepted for cell, why in each.refused.items()]
        groups: dict[tuple[str, ...], list[Cell]] = {}
        for cell in (cell for each in accepted for cell in each.cells):
            groups.setdefault((cell[NUMBER["mask"]], *cell[NUMBER["kernel"] :]), []).append(cell)
        report.not_reached = total = sum(map(len, groups.values()))
        parts = [part for group in groups.values() for part in _pieces(group)]
        parts.sort(key=len, reverse=True)
        if smallest_first:
            parts.reverse()  # what a run of the other order did not reach, from its very end on
        running = pool.imap_unordered(partial(_run_all, dtype=dtype, device=device), parts)
        while True:
            try:
                results = running.next(min(max(0.0, until - monotonic()), TIMEOUT_MAX))
            except (TimeoutError, StopIteration):
                break
            report.results += results
            report.not_reached -= len(results)
            progress(total - report.not_reached, total)
    return report


def _pieces(group: list[Cell]) -> list[list[Cell]]:
    return [group[i : i + MOST_AT_ONCE] for i in range(0, len(group), MOST_AT_ONCE)]


_gpu_failed = False  # whether a kernel has failed in this process, after which every call on its GPU does


def _run_all(cells: Sequence[Cell], dtype: torch.dtype, device: torch.device | str) -> list[KernelCell]:
    """Those of the cells that this process can still run: the first that loses the GPU is the last."""
    results: list[KernelCell] = []
    for cell in cells:
        if _gpu_failed:
            break
        results.append(_run(cell, dtype, device))
    return results


class OnlyAsked:
    """A kernel that is asked whether it refuses, and whose work the reference kernel does."""

    def __init__(self, name: str):
        self.name, self.refuses = name, kernel_named(name).refuses

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        return kernel_named("reference")(q_BHTd, view, pair, need)


class NotCompared(Bench):
    """A cell whose outcome nobody looks at."""

    def alone(self, row: int, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        return torch.empty(0)


@torch.no_grad()
def refusal(cell: Cell, dtype: torch.dtype, device: torch.device | str) -> str | None:
    """Why the cell's kernel does not do it; ``None``: it does, or fails otherwise, which is seen when it runs."""
    name = cell[NUMBER["kernel"]]
    if name == "auto":
        return None
    try:
        for _ in outcomes(cell, NotCompared.of(cell, dtype, device, kernel=OnlyAsked(name))):
            pass
    except KernelRefused as e:
        return e.why
    except Exception:
        return None
    return None


def run_cells(
    cells: Sequence[Cell],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> KernelReport:
    """Run these cells."""
    if dtype not in (*HALF, torch.float32):
        raise BadInput(f"dtype={dtype}: use float32, bfloat16 or float16; float64 is what they are compared with")
    report = KernelReport(dtype)
    for cell in cells:
        report.results.append(_run(cell, dtype, device))
        progress(len(report.results), len(cells))
    return report


def _run(cell: Cell, dtype: torch.dtype, device: torch.device | str) -> KernelCell:
    try:
        error = run_cell(cell, dtype, device)
    except KernelRefused as e:
        return KernelCell(cell, refused=e.why)
    except Exception as e:  # a broken part must show as one failed cell, not end the run
        global _gpu_failed
        _gpu_failed = _gpu_failed or isinstance(e, torch.AcceleratorError)
        return KernelCell(cell, float("inf"), raised=f"{type(e).__name__}: {e}")
    return KernelCell(cell, error, _allowed(cell, error, dtype, device))


def _allowed(cell: Cell, error: float, dtype: torch.dtype, device: torch.device | str) -> float:
    if dtype not in HALF:
        return TOLERANCE[dtype]
    if error <= TOLERANCES[dtype]:
        return TOLERANCES[dtype]
    at = NUMBER["kernel"]
    plain = (*cell[:at], "reference", *cell[at + 1 :])
    allowed = TIMES_REFERENCE * run_cell(plain, dtype, device)
    for seed in range(ROUNDED_ANEW):
        if error <= allowed:
            break
        allowed = max(allowed, run_cell(plain, dtype, device, rounded=seed))
    return allowed
