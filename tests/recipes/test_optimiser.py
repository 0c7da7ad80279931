"""Adding an optimiser, as CONTRIBUTING.md says it: one file and one line in the registry."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import contextlib
import io
from pathlib import Path

import vantage as vt
from vantage.cli.main import main
from vantage.parts import table
from vantage.training import read_log
from vantage.training.optimise import OPTIMISERS

assert OPTIMISERS["lion"].title == "Lion"
assert "| `lion` | `Lion` | Lion: the sign of the momentum |" in "".join(table("optimiser", OPTIMISERS))

Path("small.toml").write_text('''
[model]
is = "decoder"
width = 16
layers = 1
heads = 2
[data]
is = "task"
task = "copy"
lengths = [1, 4]
test_examples = 8
[loop]
steps = 40
batch = 16
threads = 1
[optimiser]
is = "lion"
lr = 1e-3
''')

shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    assert main(["train", "small.toml", "optimiser.betas=[0.8, 0.9]", "--check"]) == 0
assert "Lion(lr=0.001, betas=(0.8, 0.9)" in shown.getvalue(), shown.getvalue()

refused = io.StringIO()
with contextlib.redirect_stderr(refused):
    assert main(["train", "small.toml", "optimiser.is=lyon", "--check"]) == 2
assert "adamw, lion, muon" in refused.getvalue(), refused.getvalue()

trained = vt.train("small.toml", out="run", device="cpu")
steps, _ = read_log("run")
assert trained.finished and steps[-1].loss < 0.95 * steps[0].loss, (steps[0].loss, steps[-1].loss)

# its state is in the checkpoint: the run goes on
again = vt.train("small.toml", ["loop.steps=44"], out="run", resume=True, device="cpu")
assert again.finished and again.step == 44
print("found everywhere")
"""


def test_an_optimiser_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("optimiser.py", "vantage/training/optimise/lion.py")
    copy.add_line("vantage/training/optimise/__init__.py", '"adamw",', '"lion",')
    assert copy.run(CHECK).strip().endswith("found everywhere")
    assert copy.edits == [
        "new file vantage/training/optimise/lion.py",
        "one line in vantage/training/optimise/__init__.py",
    ]
