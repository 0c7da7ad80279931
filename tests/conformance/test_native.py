"""The native backend in the matrix: whole steps of a model in C++ against the float64 reference."""

from __future__ import annotations

import pytest
import torch

from tests.sampling import draw, holding, marks
from vantage.conformance.covering import cover
from vantage.conformance.factors import FACTOR_NAMES, NUMBER, allowed_by, rules
from vantage.conformance.matrix import TOLERANCE
from vantage.conformance.scenarios import run_cell
from vantage.kernels.native import Native, native

pytestmark = pytest.mark.skipif(native() is None, reason="no C++ compiler here")

# What has a native form. The rest is refused by the lowering, and tests/model/test_lowered.py sees to that.
HERE = {
    "encoding": (
        "none",
        "sinusoidal",
        "sinusoidal-halves",
        "learned",
        "rope",
        "rope-adjacent",
        "rope-partial",
        "rope-linear",
        "rope-ntk",
        "rope-yarn",
        "rope-llama3",
        "rope-proportional",
        "alibi",
    ),
    "attention": ("multi-head", "multi-query", "grouped", "wide-values", "qk-norm", "softcap", "sinks"),
    "mask": ("causal", "window"),
    "cache": ("contiguous", "fixed", "paged"),
    "kernel": ("auto",),
    "scenario": ("full", "steps", "ragged", "rollback", "fork"),
}
assert list(HERE) == list(FACTOR_NAMES)
CELLS = cover(HERE, 2, allowed_by(rules()))
ALWAYS = holding(CELLS, lambda pair: any(number == NUMBER["cache"] for number, _ in pair))
DRAWN = draw(CELLS, ALWAYS, 20)


@pytest.mark.parametrize("cell", [pytest.param(c, id="/".join(c), marks=marks(c in DRAWN)) for c in CELLS])
def test_whole_steps_equal_the_reference(cell, monkeypatch):
    ran, run = [], Native.run

    def counted(self, call):
        ran.append(call)
        return run(self, call)

    monkeypatch.setattr(Native, "run", counted)
    monkeypatch.setattr("vantage.model.lowered.run.MAX_OWN_PRODUCT_ROWS", 1000)  # many rows as well, whatever is faster
    assert run_cell(cell, torch.float32, head_dim=16) <= TOLERANCE[torch.float32]
    # Padding goes through torch, and so do ALiBi's distances where rows are of unequal length.
    padded = cell[5] == "fork" and cell[3] != "paged"
    assert ran or padded or (cell[0] == "alibi" and cell[5] in ("ragged", "rollback", "fork"))
