"""Adding a family, as CONTRIBUTING.md says it: one file, and one entry of its published size."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import json
from pathlib import Path

import torch

import vantage as vt
from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families import families, family_of, table
from vantage.spec.masks import Causal, SameSegment, Window

sizes = {"vocab_size": 19, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
config = {"model_type": "sparrow", **sizes, "sliding_window": 4, "window_layers": 2}
assert "sparrow" in families()
family = family_of(config)
spec = family.spec(Config(config))
far, near = Causal() & SameSegment(), Causal() & Window(4) & SameSegment()
assert [layer.mask for layer in spec.layers] == [near, near, far]

model = vt.build(spec)
model.config = config
vt.save(model, "saved")
assert "model.layers.2.self_attn.k_proj.weight" in (Path("saved") / "model.safetensors").read_bytes().decode("latin-1")
again, tokens = vt.load("saved"), torch.arange(12)[None]
assert again.spec == spec
with torch.no_grad():
    assert torch.equal(again(tokens), model.eval()(tokens))

saved = json.loads((Path("saved") / "config.json").read_text())
(Path("saved") / "config.json").write_text(json.dumps(saved | {"wing_span": 3}))
try:
    vt.load("saved")
    raise AssertionError("a key that nobody read was dropped")
except CheckpointError as error:
    assert "wing_span" in str(error), error

(row,) = [line for line in table.page().splitlines() if line.startswith("| Sparrow (1B)")]
assert "12 × grouped-query, 32 / 8 × 64, Causal & Window(1024); 4 × grouped-query, 32 / 8 × 64, Causal" in row, row
print("found everywhere")
"""


def test_a_family_is_one_file_and_one_entry(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("family.py", "vantage/families/sparrow.py")
    copy.append("family.toml", "vantage/families/published.toml")
    assert copy.run(CHECK).strip() == "found everywhere"
    assert copy.edits == ["new file vantage/families/sparrow.py", "one entry in vantage/families/published.toml"]
