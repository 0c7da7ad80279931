"""The matrix's cells through kernels that need a GPU: all of them where there is one, else a few, interpreted."""

from __future__ import annotations

import json

import pytest
import torch

from tests.kernels.fused_calls import DEVICE, MISSING
from vantage.cli.main import main
from vantage.conformance.factors import NUMBER
from vantage.conformance.kernel_column import KernelCell, KernelReport, cells_through, run_cells, run_through
from vantage.errors import BadInput
from vantage.kernels import fused

SHARES = 12  # of the cells, for as many processes
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
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", ["fused", "cudnn", "auto"])
def test_every_pair_through_the_kernels_of_a_gpu(kernel, dtype, share):
    report = run_through([kernel], dtype=dtype, device=DEVICE, share=(share, SHARES))
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
