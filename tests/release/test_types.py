"""A type checker knows every public name, from what the package ships."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vantage as vt
from tests.processes import ROOT
from tools import public_types

CHECKER = Path(sys.executable).with_name("basedpyright")
USE = """
import vantage as vt

spec = vt.decoder(vocab=64, width=32, layers=2, heads=4, position=vt.Rope(base=1e4))
model = vt.build(spec)
answer = vt.generate(vt.load("smollm2"), "Once upon", max_tokens=8)
number: int = vt.check(model)  # a report
vt.Rope(bse=1e4)
vt.decoder(vocab=64, width=32, layers="2", heads=4)
vt.nothing
"""
WRONG = {6: "reportAssignmentType", 7: "reportCallIssue", 8: "reportArgumentType", 9: "reportAttributeAccessIssue"}


def test_the_stub_has_every_public_name() -> None:
    stub = (ROOT / "vantage" / "__init__.pyi").read_text(encoding="utf-8")
    assert stub == public_types.stub(), "run `python tools/public_types.py > vantage/__init__.pyi`"
    assert all(f" as {name}\n" in stub for name in vt.__all__)


@pytest.mark.sampled
@pytest.mark.skipif(not CHECKER.is_file(), reason="there is no basedpyright here: `make env`")
def test_a_checker_finds_wrong_uses_of_public_names(tmp_path: Path) -> None:
    """And no others."""
    (tmp_path / "use.py").write_text(USE)
    config = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "include": ["use.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [str(CHECKER), "--outputjson", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {one["range"]["start"]["line"]: one["rule"] for one in found if one["severity"] == "error"}
    assert errors == WRONG, done.stdout
