"""The matrix's cells through kernels that need a GPU: all of them where there is one, else a few, interpreted."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from tests.kernels.fused_calls import DEVICE, MISSING
from vantage.cli.main import main
from vantage.conformance import kernel_column
from vantage.conformance.accepted_cells import AcceptedCells, accepted_cells
from vantage.conformance.covering import Cell, combinations
from vantage.conformance.factors import FACTOR_NAMES, NO_CACHE, NUMBER
from vantage.conformance.kernel_column import KernelCell, KernelReport, cells_through, refusal, run_cells, run_column
from vantage.conformance.scenarios import round_anew, run_cell
from vantage.errors import BadInput
from vantage.kernels import fused

PROCESSES = 12
needs_triton = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
FEW = [
    ("alibi", "grouped", "causal", "contiguous", "fused", "steps"),
    ("t5", "multi-query", "window", "none", "fused", "packed"),
    ("kerple-log", "qk-norm", "chunked", "paged", "fused", "left-padded"),
    ("rope", "sinks", "prefix", "none", "fused", "full"),
    ("fox", "softcap", "window", "ring", "fused", "ragged"),
]


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", ["fused", "cudnn"])
def test_every_pair_through_the_kernels_of_a_gpu(kernel, dtype):
    report = run_column([kernel], dtype=dtype, device=DEVICE, processes=PROCESSES)
    assert [(r.name, r.error, r.allowed, r.raised) for r in report.failures] == []


@needs_triton
@pytest.mark.sampled
@pytest.mark.parametrize("cell", FEW, ids="/".join)
def test_a_few_cells_through_the_fused_kernel(cell):
    (result,) = run_cells([cell], dtype=torch.float32, device=DEVICE).results
    assert not result.refused
    assert result.ok, (result.error, result.raised)


@needs_triton
def test_a_mask_that_a_kernel_forgets_is_caught(monkeypatch):
    flags = fused.mask_flags
    monkeypatch.setattr(fused, "mask_flags", lambda mask: flags(mask)._replace(causal=False))
    report = run_cells([(*FEW[3][:2], "causal", *FEW[3][3:])], dtype=torch.float32, device=DEVICE)
    assert [result.name for result in report.failures] == ["rope/sinks/causal/none/fused/full"]
    assert "FAILED rope/sinks/causal" in "".join(str(part) for part in report.table().renderables)


def test_in_half_precision_the_reference_kernel_is_the_measure():
    cell = ("none", "grouped", "causal", "none", "sdpa", "full")
    (result,) = run_cells([cell], dtype=torch.bfloat16, device="cpu").results
    assert result.ok
    assert result.error > 1e-3  # it did round
    assert not KernelCell(cell, 100 * result.error, result.allowed).ok


def test_where_any_rounding_makes_a_difference_others_are_a_measure(monkeypatch):
    """A gated delta rule under these weights: the reference kernel errs by 0.8, and by 2 with other roundings."""
    cell = ("pope", "gated-delta", "causal", "contiguous", "reference", "fork")
    plain = run_cell(cell, torch.bfloat16)
    anew = [run_cell(cell, torch.bfloat16, rounded=seed) for seed in range(kernel_column.ROUNDED_ANEW)]
    assert max(anew) > kernel_column.TIMES_REFERENCE * plain
    assert kernel_column._allowed(cell, 2 * max(anew), torch.bfloat16, "cpu") == max(anew)
    monkeypatch.setattr(kernel_column, "run_cell", lambda cell, dtype, device, rounded=None: plain)
    assert kernel_column._allowed(cell, max(anew), torch.bfloat16, "cpu") < max(anew)


def test_one_weight_in_twelve_is_rounded_otherwise():
    weights = nn.Linear(64, 64).bfloat16()
    before = weights.weight.double()
    round_anew(weights, 0)
    moved = (weights.weight.double() - before).abs() / before.abs()
    assert 0.05 < (moved > 0).double().mean() < 0.12
    assert moved.max() <= 2**-6


def test_a_process_whose_kernel_failed_runs_no_more(monkeypatch):
    cells = [("none", "grouped", "causal", "none", "sdpa", scenario) for scenario in ("full", "packed", "left-padded")]
    asked = []

    def run_cell(cell, dtype, device):
        asked.append(cell)
        if cell == cells[1]:
            raise torch.AcceleratorError("CUDA error: misaligned address")
        return 0.0

    monkeypatch.setattr(kernel_column, "run_cell", run_cell)
    monkeypatch.setattr(kernel_column, "_gpu_failed", False)
    results = kernel_column._run_all(cells, torch.float32, "cpu")
    assert [(r.cell, r.ok) for r in results] == [(cells[0], True), (cells[1], False)]
    assert kernel_column._run_all(cells, torch.float32, "cpu") == []
    assert asked == cells[:2]


def test_what_is_refused_is_left_out_and_every_other_pair_is_in_a_cell():
    """Of parts, of a pair and of three together; asked about as few cells as that takes."""
    some = {"encoding": ("none", "alibi", "xl"), "attention": ("grouped", "softcap"), "cache": (NO_CACHE, "contiguous")}
    asked: list[Cell] = []

    def why(cell: Cell) -> str | None:
        part = dict(zip(FACTOR_NAMES, cell, strict=True))
        if any(part[name] not in values for name, values in some.items()):
            return "a part"
        if (part["encoding"], part["scenario"]) == ("xl", "packed"):
            return "a pair"
        if (part["encoding"], part["mask"], part["attention"]) == ("alibi", "window", "softcap"):
            return "three"
        return None

    def refusals(cells: Sequence[Cell]) -> list[str | None]:
        asked.extend(cells)
        return [why(cell) for cell in cells]

    found = accepted_cells("fused", refusals)
    assert all(why(cell) is None for cell in found.cells)
    assert all(cell[NUMBER["kernel"]] == "fused" for cell in (*found.cells, *found.refused))
    assert len(set(asked)) == len(asked)
    reasons = [dict(zip(FACTOR_NAMES, cell, strict=True)) for cell, why in found.refused.items() if why == "a pair"]
    assert [(part["encoding"], part["scenario"]) for part in reasons] == [("xl", "packed")]
    pairs = {pair for cell in found.cells for pair in combinations(cell, 2)}
    names = range(len(FACTOR_NAMES))
    for i, j in ((i, j) for i in names for j in names if i < j):
        for pair in (((i, a), (j, b)) for a in {c[i] for c in found.cells} for b in {c[j] for c in found.cells}):
            cell = found.plainest(dict(pair))
            assert pair in pairs or cell is None, pair


@pytest.mark.sampled
def test_a_column_over_two_processes(monkeypatch):
    cells = [
        FEW[3],
        ("none", "grouped", "causal", "none", "sdpa", "full"),
        ("none", "grouped", "causal", "none", "sdpa", "packed"),
    ]
    found = AcceptedCells("sdpa", cells[1:], {cells[0]: "sdpa has no sinks"})
    monkeypatch.setattr(kernel_column, "accepted_cells", lambda kernel, refusals: found)
    report = run_column(["sdpa"], device="cpu", processes=2)
    assert report.ok
    assert sorted(r.name for r in report.results if not r.refused) == ["/".join(cell) for cell in sorted(cells[1:])]
    assert report.to_json()["refusals"] == {"/".join(cells[0]): "sdpa has no sinks"}
    orders = [run_column(["sdpa"], device="cpu", processes=1, smallest_first=first) for first in (False, True)]
    largest, smallest = ([r.name for r in order.results if not r.refused] for order in orders)
    assert largest == smallest[::-1]
    late = run_column(["sdpa"], device="cpu", processes=1, seconds=0.0)
    assert (len(late.results), late.to_json()["not reached"]) == (1, 2)
    assert not late.ok


def test_a_kernel_is_asked_and_does_not_run():
    assert refusal(("none", "softcap", "causal", "none", "sdpa", "full"), torch.float32, "cpu") == "sdpa has no softcap"
    assert refusal(("none", "grouped", "causal", "none", "sdpa", "full"), torch.float32, "cpu") is None
    assert refusal(("none", "softcap", "causal", "none", "auto", "full"), torch.float32, "cpu") is None


def test_what_a_kernel_refuses_is_counted_with_its_reason():
    cell = ("none", "softcap", "causal", "none", "sdpa", "full")
    (result,) = run_cells([cell], dtype=torch.float32, device="cpu").results
    assert result.refused == "sdpa has no softcap"


@pytest.mark.sampled
def test_cells_hold_every_pair_of_the_other_parts_for_each_kernel():
    cells = cells_through(["fused", "auto"])
    names = ("fused", "auto")
    others = {name: {c[:4] + c[5:] for c in cells if c[NUMBER["kernel"]] == name} for name in names}
    assert others["fused"] == others["auto"]
    assert len(others["auto"]) > 800
    assert not any(cell[NUMBER["attention"]] == "hard" or cell[NUMBER["cache"]] == "kivi" for cell in cells)


def test_a_report_counts_what_is_right_wrong_and_refused():
    a, b, c = (("none", "grouped", "causal", "none", "fused", scenario) for scenario in ("full", "packed", "steps"))
    cells = [KernelCell(a, 1e-6, 1e-3), KernelCell(b, float("inf"), raised="ValueError"), KernelCell(c, refused="no")]
    report = KernelReport(torch.float32, cells)
    assert not report.ok
    counts = {"right": 1, "wrong": 1, "refused": 1, "worst": 1e-6}
    assert report.to_json()["kernels"] == {"fused": counts}
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--kernels", "fast"], "fast"),
        (["--kernels", "sdpa", "--share", "3/2"], "3/2"),
        (["--kernels", "sdpa", "--filter", "nosuch"], "nosuch"),
        (["--kernels", "sdpa", "--processes", "0"], "--processes"),
        (["--kernels", "sdpa", "--device", "cuda:77"], "cannot be used here"),
        (["--kernels", "sdpa", "--device", "cuda:77", "--processes", "1"], "cannot be used here"),
    ],
)
@pytest.mark.sampled
def test_bad_input_is_one_line(flags, why, capsys):
    assert main(["check", *flags]) == 2
    assert why in capsys.readouterr().err


def test_only_what_can_be_compared_with_float64():
    with pytest.raises(BadInput, match="float64 is what they are compared with"):
        run_cells([FEW[0]], dtype=torch.float64, device="cpu")


@needs_triton
def test_what_another_part_refuses_is_no_refusal_of_the_kernel():
    cell = ("fox", "softcap", "causal", "ring", "fused", "ragged")
    (result,) = run_cells([cell], dtype=torch.float32, device=DEVICE).results
    assert not result.ok
    assert "a ring keeps a window" in result.raised


@pytest.mark.sampled
def test_on_the_command_line(capsys):
    args = ["check", "--kernels", "sdpa", "--share", "1/40", "--filter", "none/", "--json"]
    assert main(args) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kernels"]["sdpa"]["right"] > 0
