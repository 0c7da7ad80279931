"""The mutation run itself: what it changes, and that it is neither fooled nor hurried into a wrong result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import EXPLAINED, ROOT, TARGETS, explained, explains, stages
from tests.mutation.mutants import mutants

SOURCE = '''
"""1 is no number here."""
from typing import Literal
__all__ = ["f" * 1]
if TYPE_CHECKING:
    x = 1

def f(a: Literal[3], b=2) -> Literal[4]:
    assert a > 5
    if not a <= b:
        raise ValueError(6)
    damaged(7)
    return zip(-a, a and b, strict=True) if a is None else a + 0.5
'''


def changes(tmp_path: Path, source: str) -> list[str]:
    (tmp_path / "f.py").write_text(source)
    return [f"{m.number}: {m.change}" for m in mutants(tmp_path / "f.py", tmp_path)]


def test_what_is_changed_and_what_is_left_alone(tmp_path: Path) -> None:
    assert sorted(changes(tmp_path, SOURCE)) == [
        "10: LtE -> Lt",
        "10: drop Not",
        "13: 0.5 -> 1.0",
        "13: Add -> Sub",
        "13: And -> Or",
        "13: Is -> IsNot",
        "13: drop USub",
        "8: 2 -> 3",
    ]


@pytest.mark.parametrize(
    ("test", "turned"),
    [("a", 1), ("not a", 0), ("a == b", 0), ("a is b", 0), ("a in b", 0), ("a < b", 1), ("a == b == c", 1)],
)
def test_a_condition_is_turned_round_once(tmp_path: Path, test: str, turned: int) -> None:
    for source in (f"if {test}:\n    pass", f"x = y if {test} else z"):
        found = changes(tmp_path, source)
        assert found.count("1: condition turned round") == turned
        assert len(found) > 0


def test_every_mutant_is_another_program(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(SOURCE)
    made = [mutant.source(tmp_path) for mutant in mutants(tmp_path / "f.py", tmp_path)]
    assert len({*made, SOURCE}) == len(made) + 1
    for source in made:
        compile(source, "f.py", "exec")


def test_every_explanation_is_of_a_mutant_there_is() -> None:
    """Whether that mutant still survives is for the run to say; this is quick, and finds a line that was changed."""
    entries = explained()
    assert all(set(entry) == {"file", "line", "change", "reason"} for entry in entries), EXPLAINED
    files = sorted({entry["file"] for entry in entries})
    there = {file: list(mutants(ROOT / file, ROOT)) for file in files}
    lost = [entry for entry in entries if not any(explains(entry, mutant) for mutant in there[entry["file"]])]
    assert lost == []
    keys = [(entry["file"], entry["line"], entry["change"]) for entry in entries]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("package", TARGETS)
def test_every_file_has_tests_and_ends_with_the_matrix(package: str) -> None:
    for file in sorted((ROOT / "vantage" / package).glob("*.py")):
        found = stages(str(file.relative_to(ROOT)))
        assert all(found)
        assert all((ROOT / path).exists() for paths in found for path in paths)
        assert found[-1][-1] == "tests/conformance/test_matrix.py"
        assert found[-2] == [f"tests/{package}"]


# A process of its own: a mutant is planted before the package is first imported.
RUN = """
import json, sys
from tests.mutation import __main__ as tool
from tests.mutation.mutants import mutants

tool.preload()
names = "tests/cache/test_pool.py", "tests/cache/test_facts.py"
tool.stages = lambda file: [[names[0]], [names[1]]]
pool = list(mutants(tool.ROOT / "vantage/cache/pool.py", tool.ROOT))
dies = next(m for m in pool if m.line == "self._free += blocks" and m.change == "Add -> Sub")
facts = list(mutants(tool.ROOT / "vantage/cache/facts.py", tool.ROOT))
later = next(m for m in facts if m.line == 'return device.type == "cpu"')
same = tool.Mutant("vantage/cache/pool.py", 1, "", "nothing", None)
by = tool.run(dies).by
gone = [names[0] + "::test_that_is_gone"], ["tests/cache/test_gone.py::test_it"]
innocent = [names[1] + "::test_where_rows_go_on"]
out = {
    "by": by,
    "hinted": tool.run(dies, [by]),
    "gone": [tool.run(dies, hint)[:2] for hint in gone],
    "innocent": tool.run(dies, innocent)[:2],
    "same": [tool.run(same, hint)[:2] for hint in ([by], gone[0])],
    "later": tool.run(later)[0],
    "brief": tool.run(later, brief=True)[0],
}
json.dump(out, sys.stdout)
"""


@pytest.mark.slow
def test_a_hint_changes_no_result() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by = found["by"]
    assert by.startswith("tests/cache/test_pool.py::test_")
    assert found["hinted"][:2] == ["killed", by]
    assert found["gone"] == [["killed", by]] * 2  # the others follow
    assert found["innocent"] == ["killed", by]
    assert found["same"] == [["survived", None]] * 2
    assert found["later"] == "killed"
    assert found["brief"] == "survived"  # it went no further than its own tests
