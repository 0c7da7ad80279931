"""The mutation run itself: what it changes, which tests a mutant meets, and what is recorded and exchanged for that."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import EXPLAINED, PROCESSES, ROOT, TARGETS, TESTS, explained, explains, parts
from tests.mutation.collected import exchange
from tests.mutation.covering import DECLARED, SECONDS, Covering, in_functions
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.recording import MonitoredLines, Part, TracedLines, digest, kept_record, record, still_true

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


def test_what_a_module_declares_meets_the_tests_of_all_declarations(tmp_path: Path, covering: Covering) -> None:
    """They run no line of its file."""
    (tmp_path / "vantage/attention").mkdir(parents=True)
    (tmp_path / "vantage/attention/sizes.py").write_text(SIZES)
    covering.lines["vantage/attention/sizes.py"] = covering.lines.pop("sizes.py")
    covering.tests.append(f"{DECLARED['attention']}::a")
    covering.seconds.append(2.5)
    limit, call = (Mutant("vantage/attention/sizes.py", line, "", "nothing", None) for line in (1, 5))
    assert covering.stages(limit, tmp_path)[0] == [
        "sizes_c.py::b",
        "sizes_c.py::a",
        "sizes_b.py::a",
        f"{DECLARED['attention']}::a",
        "sizes_a.py::a",
    ]
    assert not any(DECLARED["attention"] in test for stage in covering.stages(call, tmp_path) for test in stage)


def test_the_tests_of_all_declarations_are_there() -> None:
    assert set(DECLARED) <= set(TARGETS)
    assert set(DECLARED.values()) <= {part.file for part in parts()}


def test_slow_tests_are_left_out_unless_there_is_no_other(tmp_path: Path, covering: Covering) -> None:
    covering.seconds = [SECONDS + 1, 0.2, SECONDS - 1, SECONDS - 2, SECONDS - 3, 0.5]
    assert covering.stages(a_mutant(5), tmp_path) == [["sizes_c.py::a"], ["wide.py::a"]]


# ---- what is recorded


@pytest.mark.parametrize(
    "recorder",
    [
        TracedLines,
        pytest.param(
            MonitoredLines, marks=pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.12 has it")
        ),
    ],
)
def test_lines_are_recorded_by_test(tmp_path: Path, recorder: type[TracedLines] | type[MonitoredLines]) -> None:
    folder, elsewhere = tmp_path / "sizes", tmp_path / "others"
    for there in (folder, elsewhere):
        there.mkdir()
        (there / "f.py").write_text("def f(n):\n    if n:\n        return 1\n    return 2\n")
    spaces: list[dict] = [{}, {}]
    lines = recorder([f"{folder}/"])
    lines.start()
    for there, space in zip((folder, elsewhere), spaces, strict=True):
        exec(compile((there / "f.py").read_text(), str(there / "f.py"), "exec"), space)
    for test, n in (("a", 1), ("b", 0), ("c", 1)):
        lines.switch(test)
        for space in spaces:
            space["f"](n)
            space["f"](n)
    lines.switch("")
    found = lines.stop()
    assert list(found) == [str(folder / "f.py")]
    by_line = {line: sorted(test for test in tests if test) for line, tests in found[str(folder / "f.py")].items()}
    assert by_line == {1: [], 2: ["a", "b", "c"], 3: ["a", "c"], 4: ["b"]}


def keep(root: Path, part: Part, **changed: object) -> None:
    """As if it had been recorded."""
    digests = {file: digest(root / file) for file in (part.file, "a.py")}
    kept = {"digests": digests, "seconds": {f"{part.file}::a": 1.0}, "failed": [], "lines": {}} | changed
    part.kept(root).parent.mkdir(parents=True, exist_ok=True)
    part.kept(root).write_text(json.dumps(kept))


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setenv("VANTAGE_TEST_SEED", "0")
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "test_a.py").write_text("1")
    return Part("test_a.py", 0, 1)


@pytest.mark.parametrize("changed", ["a.py", "test_a.py"])
def test_what_was_recorded_holds_until_a_file_changes(tmp_path: Path, part: Part, changed: str) -> None:
    assert not still_true(tmp_path, kept_record(tmp_path, part), leave_out_failing=False)
    keep(tmp_path, part)
    assert still_true(tmp_path, kept_record(tmp_path, part), leave_out_failing=False)
    (tmp_path / changed).write_text("2")
    assert not still_true(tmp_path, kept_record(tmp_path, part), leave_out_failing=False)
    (tmp_path / changed).unlink()
    assert not still_true(tmp_path, kept_record(tmp_path, part), leave_out_failing=False)


def test_another_seed_records_again(tmp_path: Path, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, part)
    monkeypatch.setenv("VANTAGE_TEST_SEED", "all")
    assert kept_record(tmp_path, part) is None


def test_the_longest_are_recorded_first_and_those_that_failed_once_more(
    tmp_path: Path, part: Part, capsys: pytest.CaptureFixture[str]
) -> None:
    new, long, divided, true = (Part(f"{name}.py", 0, 1 + (name == "divided")) for name in ("b", "c", "divided", "e"))
    for one, size in ((new, 500), (long, 9), (divided, 9), (true, 9)):
        (tmp_path / one.file).write_text("#" * size)
    keep(tmp_path, part, failed=["test_a.py::b"])
    keep(tmp_path, long, seconds={"c.py::a": 2.0}, digests={"c.py": "was another"})
    keep(tmp_path, true, lines={"a.py": {"7": [0]}})
    began: list[Part] = []

    def run(one: Part) -> None:
        began.append(one)
        if one is not divided:  # whose process dies
            keep(tmp_path, one, failed=["test_a.py::b"] * (one is part))

    covering, failed = record(tmp_path, [new, part, long, divided, true], run, workers=1)
    assert began == [divided, long, part, new]
    assert failed == ["test_a.py::b", "divided.py"]
    assert [covering.tests[test] for test in covering.lines["a.py"][7]] == ["e.py::a"]
    assert "1 of 5 test files run is known, 4 to record" in capsys.readouterr().out
    began.clear()
    record(tmp_path, [new, part, long, divided, true], run, workers=1, leave_out_failing=True)
    assert began == [divided]


def test_there_are_such_tests() -> None:
    assert all((ROOT / path).exists() for path in TESTS)
    found = parts()
    assert len(set(found)) == len(found)
    for file, number in PROCESSES.items():
        assert [part for part in found if part.file == file] == [Part(file, i, number) for i in range(number)]


# ---- what is exchanged


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
