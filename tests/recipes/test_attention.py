"""Adding an attention, as CONTRIBUTING.md says it: one file and one line in the registry."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import torch
import vantage as vt
from vantage.attention import ATTENTIONS
from vantage.checkpoints.spec_json import from_json, to_json
from vantage.compare.entries import ModelShape, attentions, section
from vantage.conformance.matrix import run_matrix
from vantage.inspect.cost import cost
from vantage.parts import table

spec = vt.decoder(vocab=9, width=16, layers=1, attention=ATTENTIONS["halved"].make(4))
assert from_json(to_json(spec), most=1) == spec
model = vt.build(spec)
vt.save(model, "saved")
tokens = torch.tensor([[1, 2, 3]])
assert torch.equal(model(tokens), vt.load("saved")(tokens))
counted = cost(model, context=64)
assert counted.uncounted == () and counted.passes[0].operations > 0

report = run_matrix(strength=1, filter="/halved/")
assert report.results and all(result.ok for result in report.results), report.results
assert "halved" in attentions()
assert section("rope", "halved", ModelShape(), 32).attention == ATTENTIONS["halved"].make(4)
assert any("`halved` | `Halved`" in line for line in table("attention", ATTENTIONS))
print("found everywhere")
"""


def test_an_attention_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("attention.py", "vantage/attention/halved.py")
    copy.add_line("vantage/attention/__init__.py", '"latent",', '"halved",')
    assert copy.run(CHECK) == "found everywhere\n"
    assert len(copy.edits) == 2
