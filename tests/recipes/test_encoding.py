"""Adding a position encoding, as CONTRIBUTING.md says it: one file and one line in the registry."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import torch
import vantage as vt
from vantage.checkpoints.spec_json import from_json, to_json
from vantage.compare.entries import all_positions
from vantage.conformance.matrix import run_matrix
from vantage.inspect.cost import cost
from vantage.parts import table
from vantage.position import ENCODINGS, encoding
from vantage.serve.studio.encodings import choices

spec = vt.decoder(vocab=9, width=16, layers=1, heads=2, position="fading")
assert encoding("fading").start == 0.5
assert from_json(to_json(spec), most=1) == spec

model = vt.build(spec)
vt.save(model, "saved")
again = vt.load("saved")
tokens = torch.tensor([[1, 2, 3]])
assert torch.equal(model(tokens), again(tokens))
assert vt.check(model).ok
counted = cost(model, context=64)
assert counted.uncounted == () and counted.passes[0].operations > 0

report = run_matrix(strength=1, filter="fading/")
assert report.results and all(result.ok for result in report.results), report.results
assert {"fading", "randomised-fading"} <= set(all_positions())
assert [(p.name, p.low, p.high, p.default) for p in choices()["fading"].parameters] == [("start", 0.0, 8.0, 0.5)]
assert any("`fading` | `Fading`" in line for line in table("position", ENCODINGS))
print("found everywhere")
"""


def test_an_encoding_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("encoding.py", "vantage/position/fading.py")
    copy.add_line("vantage/position/__init__.py", '"cope",', '"fading",')
    assert copy.run(CHECK) == "found everywhere\n"
    assert len(copy.edits) == 2
