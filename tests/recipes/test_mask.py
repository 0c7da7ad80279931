"""Adding a mask, as CONTRIBUTING.md says it: one file and one line in the registry."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import torch
import vantage as vt
from vantage.checkpoints.spec_json import from_json, to_json
from vantage.conformance.matrix import run_matrix
from vantage.parts import table
from vantage.spec.dilated import Dilated
from vantage.spec.mask_registry import MASKS

spec = vt.decoder(vocab=9, width=16, layers=1, heads=2, mask=vt.Causal() & Dilated(3))
assert from_json(to_json(spec), most=1) == spec
model = vt.build(spec)
vt.save(model, "saved")
tokens = torch.tensor([[1, 2, 3, 4]])
assert torch.equal(model(tokens), vt.load("saved")(tokens))

report = run_matrix(strength=1, filter="/dilated/")
assert report.results and all(result.ok for result in report.results), report.results
assert any("`dilated` | `Dilated`" in line for line in table("mask", MASKS))
print("found everywhere")
"""


def test_a_mask_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("mask.py", "vantage/spec/dilated.py")
    copy.add_line("vantage/spec/mask_registry.py", '"vantage.spec",', '"dilated",')
    assert copy.run(CHECK) == "found everywhere\n"
    assert len(copy.edits) == 2
