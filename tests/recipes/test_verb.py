"""Adding a verb, as CONTRIBUTING.md says it: one file and one entry in VERBS."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import contextlib
import io
import json
import sys

from vantage.cli.main import main

def said(*words, code=0):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            assert main(words) == code
        except SystemExit as e:
            assert e.code == code, e.code
    return out.getvalue()

assert "list the position encodings" in said("--help")
own = said("encodings", "--help")
assert "vantage encodings rope --json" in own and "NAME" in own
assert "torch" not in sys.modules  # nothing heavy is imported before a verb runs

assert "rope: " in said("encodings")
assert list(json.loads(said("encodings", "alibi", "--json"))) == ["alibi"]
(line,) = said("encodings", "alibbi", code=2).splitlines()
assert line.startswith("vantage: ") and "Did you mean 'alibi'?" in line, line
print("found everywhere")
"""


def test_a_verb_is_one_file_and_one_entry(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("verb.py", "vantage/cli/encodings.py")
    copy.add_line("vantage/cli/main.py", '"convert",', '"encodings",')
    assert copy.run(CHECK).strip() == "found everywhere"
    assert copy.edits == ["new file vantage/cli/encodings.py", "one line in vantage/cli/main.py"]
