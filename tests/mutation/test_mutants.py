"""The mutation run itself: what it changes, and that it is neither fooled nor hurried into a wrong result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import EXPLAINED, ROOT, TESTS, explained, explains
from tests.mutation.collected import exchange
from tests.mutation.covering import SECONDS, Covering, digest, in_functions, still_true
from tests.mutation.mutants import Mutant, mutants

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


# ---- which tests a mutant meets

SIZES = """LIMIT = 3


def size(n, most=LIMIT):
    return min(
        n,
        most,
    )
"""


def a_mutant(line: int) -> Mutant:
    return Mutant("sizes.py", line, "", "nothing", None)


@pytest.fixture
def covering(tmp_path: Path) -> Covering:
    (tmp_path / "sizes.py").write_text(SIZES)
    tests = ["wide.py::a", "wide.py::b", "sizes_a.py::a", "sizes_b.py::a", "sizes_c.py::a", "sizes_c.py::b"]
    lines = {"sizes.py": {5: [0, 2, 3, 4], 7: [0, 1, 5]}, "others.py": {line: [0] for line in range(9)}}
    return Covering(tests, [0.1, 0.2, 3.0, 2.0, 1.0, 0.5], lines)


def test_lines_of_functions(tmp_path: Path, covering: Covering) -> None:
    assert in_functions(tmp_path / "sizes.py") == {5, 6, 7, 8}  # a default is worked out when the file is imported


def test_a_mutant_meets_the_tests_of_its_line_the_nearest_and_the_quickest_first(
    tmp_path: Path, covering: Covering
) -> None:
    assert covering.stages(a_mutant(5), tmp_path) == [
        ["sizes_c.py::a", "sizes_b.py::a", "sizes_a.py::a"],
        ["wide.py::a"],  # most of what it runs is elsewhere
    ]
    everything = [["sizes_c.py::b", "sizes_c.py::a", "sizes_b.py::a", "sizes_a.py::a"], ["wide.py::a", "wide.py::b"]]
    assert covering.stages(a_mutant(1), tmp_path) == everything  # of an import
    assert covering.stages(a_mutant(6), tmp_path) == everything  # of a line that nothing seems to run
    (tmp_path / "unused.py").write_text("")
    assert covering.stages(Mutant("unused.py", 1, "", "nothing", None), tmp_path) == [[], []]


def test_slow_tests_are_left_out_unless_there_is_no_other(tmp_path: Path, covering: Covering) -> None:
    covering.seconds = [SECONDS + 1, 0.2, SECONDS - 1, SECONDS - 2, SECONDS - 3, 0.5]
    assert covering.stages(a_mutant(5), tmp_path) == [["sizes_c.py::a"], ["wide.py::a"]]


def test_what_was_recorded_holds_until_a_file_changes(tmp_path: Path) -> None:
    source, kept = tmp_path / "a.py", tmp_path / "kept.json"
    assert not still_true(tmp_path, kept)
    source.write_text("1")
    kept.write_text(json.dumps({"digests": {"a.py": digest(source)}}))
    assert still_true(tmp_path, kept)
    source.write_text("2")
    assert not still_true(tmp_path, kept)
    source.unlink()
    assert not still_true(tmp_path, kept)


def test_there_are_such_tests() -> None:
    assert all((ROOT / path).exists() for path in TESTS)


# A process of its own: a mutant is planted before the package is first imported.
RUN = """
import json, sys
from tests.mutation import __main__ as tool
from tests.mutation.mutants import mutants

tool.preload()
tool.TESTS = names = "tests/cache/test_pool.py", "tests/cache/test_facts.py"
covering = tool.recorded(1)
pool = list(mutants(tool.ROOT / "vantage/cache/pool.py", tool.ROOT))
dies = next(m for m in pool if m.line == "self._free += blocks" and m.change == "Add -> Sub")
same = tool.Mutant("vantage/cache/pool.py", 1, "", "nothing", None)
stages = covering.stages(dies, tool.ROOT)
by = tool.run(dies, stages).by
gone = [names[0] + "::test_that_is_gone"], ["tests/cache/test_gone.py::test_it"]
innocent = [names[1] + "::test_where_rows_go_on"]
out = {
    "stages": stages,
    "by": by,
    "hinted": tool.run(dies, stages, [by]),
    "gone": [tool.run(dies, stages, hint)[:2] for hint in gone],
    "innocent": tool.run(dies, stages, innocent)[:2],
    "same": [tool.run(same, covering.stages(same, tool.ROOT), hint)[:2] for hint in ([by], gone[0])],
    "later": tool.run(dies, [innocent, [by]])[:2],
    "none": tool.run(dies, [innocent, []])[:2],
}
json.dump(out, sys.stdout)
"""


@pytest.mark.slow
def test_a_hint_changes_no_result() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    by = outcome["by"]
    assert by.startswith("tests/cache/test_pool.py::test_")
    assert by in outcome["stages"][0]
    assert not any(test.startswith("tests/cache/test_facts.py") for tests in outcome["stages"] for test in tests)
    assert outcome["hinted"][:2] == ["killed", by]
    assert outcome["gone"] == [["killed", by]] * 2  # the others follow
    assert outcome["innocent"] == ["killed", by]
    assert outcome["same"] == [["survived", None]] * 2
    assert outcome["later"] == ["killed", by]
    assert outcome["none"] == ["survived", None]


# Some mutants of a file, judged both ways; and one test that fails by itself.
BOTH_WAYS = """
import json, sys
from itertools import chain
from tests.mutation import __main__ as tool, collected
from tests.mutation.mutants import mutants

tool.preload()
tool.TESTS = ("tests/cache/test_pool.py",)
covering = tool.recorded(1)
pool = list(mutants(tool.ROOT / "vantage/cache/pool.py", tool.ROOT))[::4]
jobs = [collected.Job(m, list(chain(*covering.stages(m, tool.ROOT)))) for m in pool]
quick = collected.killed(tool.ROOT, jobs, tool.OPTIONS, 2, tool.SECONDS)
slow = {m.name: tool.run(m, covering.stages(m, tool.ROOT)).how for m in pool}
broken = collected.Result(0, True, jobs[0].tests[0], 0.0)
rerun = lambda others: iter([collected.Result(0, True, others[0].tests[0], 0.0)])
out = {
    "slow": slow,
    "quick": [m.name for m in quick],
    "judged": [m.name for m in pool if collected.exchangeable(m, tool.ROOT)],
    "confirmed": sorted(collected.confirmed([broken], rerun)),
}
json.dump(out, sys.stdout)
"""


@pytest.mark.slow
def test_collected_tests_kill_what_a_fresh_import_kills() -> None:
    done = subprocess.run([sys.executable, "-c", BOTH_WAYS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    killed = {name for name, how in outcome["slow"].items() if how == "killed"}
    quick, judged = set(outcome["quick"]), set(outcome["judged"])
    assert quick <= killed  # none is called dead that lives
    assert len(quick) > 0.8 * len(killed & judged) > 3  # and most are found the quick way
    assert outcome["confirmed"] == []  # a test that fails by itself has killed nobody


def test_code_is_exchanged_where_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("def size(n):\n    return n + 1\n\nTWO = [lambda: 1 + 1, lambda: 2 + 2]\n")
    space: dict = {}
    exec(compile((tmp_path / "sizes.py").read_text(), str(tmp_path / "sizes.py"), "exec"), space)
    mutant = next(m for m in mutants(tmp_path / "sizes.py", tmp_path) if m.change == "Add -> Sub")
    assert not exchange(mutant, tmp_path, [space["size"], *space["TWO"]])  # two lambdas of one line
    assert space["size"](3) == 4
    assert exchange(mutant, tmp_path, [space["size"]])
    assert space["size"](3) == 2
    assert not exchange(mutant, tmp_path, [])
