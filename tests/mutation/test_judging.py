"""The mutation run itself: how a mutant is judged and what is kept of it, and that neither is fooled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.mutation import __main__ as tool
from tests.mutation.fork_server import Answer, ForkServer
from tests.mutation.judged import Judged, Outcome
from tests.mutation.judging import Judge
from tests.mutation.mutants import Mutant, mutants

SOURCE = "LIMIT = 3\n\n\ndef size(n):\n    return n + 1\n"
TEST = "tests/test_sizes.py"
SURVIVED = Outcome("survived")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "sizes.py").write_text(SOURCE)
    (tmp_path / TEST).write_text("")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def of_import(root: Path) -> Mutant:
    return next(mutant for mutant in mutants(root / "sizes.py", root) if mutant.number == 1)


@pytest.fixture
def of_function(root: Path) -> Mutant:
    return next(mutant for mutant in mutants(root / "sizes.py", root) if mutant.change == "Add -> Sub")


# ---- one mutant


class Server:
    """Instead of processes: which tests fail with a mutant, and which without one."""

    def __init__(self, failing: str = "", *, unchanged: str = "", exchanges: bool = True, dies: bool = False):
        self.failing, self.unchanged, self.exchanges, self.dies = failing.split(), unchanged.split(), exchanges, dies
        self.asked: list[str] = []

    def ask(self, request: Mapping[str, Any], seconds: int) -> Answer:
        mutant, tests = request["mutant"], request["tests"]
        self.asked.append(("" if mutant else "unchanged ") + " ".join(tests))
        if mutant and not self.exchanges:
            return Answer({"exchanged": False}, None)
        failed = next((test for test in tests if test in (self.failing if mutant else self.unchanged)), None)
        return Answer(None, failed) if failed and self.dies else Answer({"failed": failed}, failed)


def judge(root: Path, fresh: Server, collected: Server) -> Judge:
    return Judge(root, cast("ForkServer", fresh), cast("ForkServer", collected))


STAGES = [["a"], ["b", "c"], ["d"]]


def test_a_mutant_of_a_function_meets_collected_tests_and_the_nearest_from_a_fresh_import(
    root: Path, of_function: Mutant
) -> None:
    fresh, collected = Server(), Server()
    assert judge(root, fresh, collected).judge(of_function, STAGES, again=2) == SURVIVED
    assert (collected.asked, fresh.asked) == (["a b c d"], ["a", "b c"])
    fresh, collected = Server(), Server("c")
    assert judge(root, fresh, collected).judge(of_function, STAGES, again=2) == Outcome("killed", "c")
    assert (collected.asked, fresh.asked) == (["a b c d", "unchanged c"], [])
    fresh, collected = Server("b"), Server()  # something was worked out while tests were collected
    assert judge(root, fresh, collected).judge(of_function, STAGES, again=2) == Outcome("killed", "b")


def test_what_cannot_be_exchanged_meets_every_test_from_a_fresh_import(
    root: Path, of_function: Mutant, of_import: Mutant
) -> None:
    fresh, collected = Server("d"), Server(exchanges=False)
    assert judge(root, fresh, collected).judge(of_function, STAGES, again=0) == Outcome("killed", "d")
    assert fresh.asked == ["a", "b c", "d", "unchanged d"]
    fresh, collected = Server(), Server("a")
    assert judge(root, fresh, collected).judge(of_import, STAGES, again=0) == SURVIVED
    assert (collected.asked, fresh.asked) == ([], ["a", "b c", "d"])


def test_a_test_that_fails_by_itself_kills_nobody(
    root: Path, of_import: Mutant, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = Server("b c", unchanged="b")
    judged = judge(root, fresh, Server())
    assert judged.judge(of_import, [["a", "b", "c"]]) == Outcome("killed", "c")
    assert fresh.asked == ["a b c", "unchanged b", "a c", "unchanged c"]
    fresh.failing = ["b"]
    assert judged.judge(of_import, [["a", "b", "c"]]) == SURVIVED
    assert fresh.asked[4:] == ["a b c", "a c"]  # which tests pass is known
    assert capsys.readouterr().err == "left out from a fresh import, where it fails without a mutant: b\n"


def test_a_process_that_dies_has_died_of_the_test_it_was_in(root: Path, of_import: Mutant) -> None:
    assert judge(root, Server("b", dies=True), Server()).judge(of_import, [["a", "b"]]) == Outcome("died", "b")
    by_itself = Server("b", unchanged="b", dies=True)  # a machine without memory, say
    assert judge(root, by_itself, Server()).judge(of_import, [["a", "b"]]) == SURVIVED


# ---- what is kept


def kept(root: Path, how: Callable[[Mutant], Outcome], explained: list[dict[str, str]] | None = None) -> Judged:
    """Judge every mutant of the file so."""
    judged = Judged(root, root / "judged.json", explained or [])
    run = tool.Run(["sizes.py"], judged, explained or [], show=False)
    for mutant in run.left:
        run.settle(mutant, how(mutant))
    return Judged(root, root / "judged.json", explained or [])


def killed(mutant: Mutant) -> Outcome:
    return Outcome("killed", f"{TEST}::test_{mutant.number}")


def test_a_file_stands_as_judged_until_something_changes(root: Path) -> None:
    assert not Judged(root, root / "judged.json", []).stands("sizes.py")
    judged = kept(root, killed)
    assert judged.stands("sizes.py")
    assert judged.counts(["sizes.py"]) == {"killed": 3, "explained": 0, "open": 0}
    other = [{"file": "others.py", "line": "x", "change": "y"}]
    assert Judged(root, root / "judged.json", other).stands("sizes.py")
    assert not Judged(root, root / "judged.json", [{**other[0], "file": "sizes.py"}]).stands("sizes.py")
    (root / TEST).write_text("new")
    assert not judged.stands("sizes.py")
    (root / TEST).write_text("")
    assert judged.stands("sizes.py")
    (root / "sizes.py").write_text(SOURCE + "\n")
    assert not judged.stands("sizes.py")


def test_other_operators_judge_everything_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = kept(root, killed)
    monkeypatch.setattr("tests.mutation.judged.OPERATORS", root / TEST)
    assert not judged.stands("sizes.py")


def test_a_file_with_a_survivor_does_not_stand(root: Path, of_function: Mutant) -> None:
    judged = kept(root, lambda mutant: SURVIVED if mutant == of_function else killed(mutant))
    assert judged.open_ends("sizes.py") == ["survived: 5: Add -> Sub: return n + 1"]
    assert not judged.stands("sizes.py")


def test_an_explanation_explains_a_survivor_or_is_idle(
    root: Path, of_function: Mutant, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"file": "sizes.py", "line": of_function.line, "change": of_function.change, "reason": "none"}
    judged = kept(root, lambda mutant: SURVIVED if mutant == of_function else killed(mutant), [entry])
    assert judged.stands("sizes.py")
    assert judged.counts(["sizes.py"]) == {"killed": 2, "explained": 1, "open": 0}
    judged = kept(root, killed, [entry])
    assert judged.open_ends("sizes.py") == ["explains nothing: Add -> Sub: return n + 1"]
    assert not judged.stands("sizes.py")
    assert "explains nothing: sizes.py: Add -> Sub: return n + 1" in capsys.readouterr().out


def test_the_test_that_killed_is_a_hint_wherever_the_line_moves(root: Path, of_function: Mutant) -> None:
    kept(root, killed)
    (root / "sizes.py").write_text("\n\n" + SOURCE.replace("n + 1", "n + 1 + n"))
    run = tool.Run(["sizes.py"], Judged(root, root / "judged.json", []), [], show=False)
    limit, *others = run.left
    assert tool._guesses(run, limit, doubt=False) == [f"{TEST}::test_1"]
    # a line that changed: the file's commonest
    assert {tuple(tool._guesses(run, m, doubt=False)) for m in others} == {(f"{TEST}::test_5", f"{TEST}::test_1")}


def test_what_was_begun_leaves_hints_and_is_not_judged(root: Path) -> None:
    judged = Judged(root, root / "judged.json", [])
    run = tool.Run(["sizes.py"], judged, [], show=False)
    run.settle(run.left[0], killed(run.left[0]))
    assert not (root / "judged.json").exists()
    run.keep_begun()
    again = Judged(root, root / "judged.json", [])
    assert not again.stands("sizes.py")
    assert again.killers("sizes.py").commonest() == [f"{TEST}::test_1"]


def test_results_of_another_machine_are_taken_over_where_they_hold(root: Path) -> None:
    kept(root, killed)
    there = root / "theirs.json"
    (root / "judged.json").rename(there)
    kept(root, lambda _: SURVIVED)
    judged = Judged(root, root / "judged.json", [])
    assert judged.merge(there) == ["sizes.py"]
    assert Judged(root, root / "judged.json", []).stands("sizes.py")
    (root / "sizes.py").write_text(SOURCE + "\n")
    assert judged.merge(there) == []


# ---- processes; in one of their own, since a mutant is planted before the package is first imported


def output(source: str, *args: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", source, *args], cwd=tool.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


ASK = """
import json, os, sys, time
from tests.mutation import fork_server
from tests.mutation.fork_server import ForkServer, OutOfTime

prepared = []

def handle(request, tell):
    tell(request["say"])
    if request["say"] == "die":
        os.kill(os.getpid(), 9)
    if request["say"] == "spin":
        while True:
            pass
    if request["say"] == "sleep":
        time.sleep(60)
    print("nobody reads this")
    return {"prepared": prepared, "said": request["say"]}

def prepare(serve):
    prepared.append("once")
    serve(handle)

def out_of_time(run):
    begun = time.monotonic()
    try:
        run()
    except OutOfTime:
        return time.monotonic() - begun < 30
    return False

def broken(serve):
    raise ValueError("of this")

with ForkServer(prepare) as server:
    out = {say: server.ask({"say": say}, 1) for say in ("well", "die", "spin", "well again")}
    fork_server.HANGS = 0.2
    out["sleep"] = server.ask({"say": "sleep"}, 1)
    fork_server.HANGS = 900
with ForkServer(prepare, time.monotonic() + 1) as server:
    out["late"] = [out_of_time(lambda: server.ask({"say": "sleep"}, 1)) for _ in range(2)]
out["late"].append(out_of_time(lambda: ForkServer(lambda serve: time.sleep(60), time.monotonic() + 0.2)))
try:
    ForkServer(broken)
except RuntimeError as error:
    out["broken"] = str(error)
json.dump(out, sys.stdout)
"""


def test_a_process_that_forks_answers_whatever_its_children_do() -> None:
    out = output(ASK)
    assert out["well"] == [{"prepared": ["once"], "said": "well"}, "well"]
    assert out["well again"] == [{"prepared": ["once"], "said": "well again"}, "well again"]
    assert [out[say] for say in ("die", "spin", "sleep")] == [[None, "die"], [None, "spin"], [None, "sleep"]]
    assert out["late"] == [True, True, True]
    assert "died before the first one" in out["broken"]


POOL = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from tests.mutation import __main__ as tool
from tests.mutation.mutants import mutants

tool.TESTS = ("tests/cache/test_pool.py",)
tool.JUDGED = Path(sys.argv[1])
FILE = "vantage/cache/pool.py"

def run(*args):
    sys.argv = ["", FILE, *args]
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        code = tool.main()
    return code, said.getvalue()
"""

# Some mutants of a file, judged both ways.
BOTH_WAYS = (
    POOL
    + """
tool.preload()
with tool.ForkServer(partial(tool.serve_fresh, tool.ROOT, tool.TARGETS, tool.OPTIONS)) as fresh:
    record_one = lambda part: fresh.ask({"record": part}, 3600)
    covering, failed = tool.record(tool.ROOT, tool.parts(), record_one, 1)
    with tool.ForkServer(partial(tool.collect, tool.ROOT, list(tool.TESTS), tool.OPTIONS)) as collected:
        judge = tool.Judge(tool.ROOT, fresh, collected)
        chosen = list(mutants(tool.ROOT / FILE, tool.ROOT))[::6]
        tests = {m: list(chain(*covering.stages(m, tool.ROOT))) for m in chosen}
        out = {
            "failed": failed,
            "slow": [judge.run(fresh, m, tests[m]).how for m in chosen],
            "quick": [judge.run(collected, m, tests[m]).how for m in chosen],
            "gone": judge.run(fresh, chosen[0], ["tests/cache/test_gone.py::test_it", tests[chosen[0]][0] + "_gone"]),
            "unchanged": [judge.run(s, None, list(covering.tests)).how for s in (fresh, collected)],
        }
json.dump(out, sys.stdout)
"""
)


@pytest.mark.slow
def test_collected_tests_kill_what_a_fresh_import_kills(tmp_path: Path) -> None:
    out = output(BOTH_WAYS, str(tmp_path / "judged.json"))
    assert out["failed"] == []
    assert out["unchanged"] == ["survived", "survived"]
    assert out["gone"] == ["survived", None]
    killed = [quick for quick, slow in zip(out["quick"], out["slow"], strict=True) if slow == "killed"]
    assert out["slow"].count("killed") >= out["quick"].count("killed") > 0.8 * len(killed) > 8
    assert all(slow == "killed" for quick, slow in zip(out["quick"], out["slow"], strict=True) if quick == "killed")


# A file judged whole, again by what killed before, and with hints that are wrong.
AGAIN = (
    POOL
    + """
out = {"first": run("--workers", "2"), "late": run("--seconds", "0")}
kept = json.loads(tool.JUDGED.read_text())
out["kept"] = kept[FILE]
out["again"] = run("--workers", "2")
(tests,) = kept[FILE]["killers"].values()
names = sorted({name for names in tests.values() for name in names.split()})
wrong = {"test_a_plan_without_new_blocks_takes_none": " ".join(names), "test_that_is_gone": " ".join(names)}
kept[FILE]["killers"] = {tool.TESTS[0]: wrong}
tool.JUDGED.write_text(json.dumps(kept))
out["misled"] = run("--workers", "2")
out["kept then"] = json.loads(tool.JUDGED.read_text())[FILE]
json.dump(out, sys.stdout)
"""
)


@pytest.mark.slow
def test_a_hint_changes_no_result(tmp_path: Path) -> None:
    out = output(AGAIN, str(tmp_path / "judged.json"))
    kept = out["kept"]
    assert kept["killed"] > 80
    assert list(kept["killers"]) == ["tests/cache/test_pool.py"]
    assert [out[which][0] for which in ("first", "late", "again", "misled")] == [1, 3, 1, 1]
    assert "meet tests that killed them" not in out["first"][1]
    assert "meet tests that killed them" in out["again"][1]
    open_ends = len(kept["open"])  # what tests of other files kill
    assert 0 < open_ends < 9
    assert f"{open_ends} mutants meet the tests that run their lines" in out["again"][1]
    assert "out of time" in out["late"][1]
    assert {key: out["kept then"][key] for key in ("killed", "open")} == {key: kept[key] for key in ("killed", "open")}
