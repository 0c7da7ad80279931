"""The benchmark harness: its statistics, its turns, and what it does when a contestant misbehaves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bench.__main__ import MACHINERY, load, main, names, only
from bench.harness import Bench, BenchError, Contestant, Goal, Outcome, Result, run, write
from bench.stats import median, quantile, ratio, summarise
from bench.table import seconds, show

finite = st.floats(min_value=1e-6, max_value=1e6)


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=40), st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], share: float) -> None:
    assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9)


def test_summary_of_known_numbers() -> None:
    found = summarise([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found.n, found.low, found.median, found.high) == (5, 2.0, 3.0, 4.0)
    assert median([1.0, 2.0]) == 1.5


def test_ratio_is_of_the_medians_and_its_spread_round_by_round() -> None:
    # The machine slows down threefold half-way; both suffer alike, so the rounds agree on one half.
    a = [[1.0], [1.0], [3.0], [3.0], [3.0]]
    b = [[2.0], [2.0], [6.0], [6.0], [6.0]]
    found = ratio(a, b)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


def test_ratio_takes_many_samples_a_round() -> None:
    found = ratio([[1.0, 2.0, 9.0], [2.0]], [[4.0], [4.0]])
    assert found.value == 0.5
    assert (found.low, found.high) == (0.5, 0.5)


def test_statistics_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ValueError, match="at least one"):
        quantile([], 0.5)
    with pytest.raises(ValueError, match="from 0 to 1"):
        quantile([1.0], 1.5)
    with pytest.raises(ValueError, match="pair up"):
        ratio([[1.0]], [[1.0], [2.0]])


@pytest.mark.parametrize(("value", "text"), [(12.345, "12.3 s"), (0.01234, "12.3 ms"), (0.0000123, "12.3 µs")])
def test_seconds_are_shown_in_a_fitting_unit(value: float, text: str) -> None:
    assert seconds(value) == text


def contestant(folder: Path, name: str, round_body: str, **params: object) -> Contestant:
    """A contestant of plain Python. It notes every turn in a file that all of them share."""
    file = folder / f"{name}.py"
    file.write_text(
        "from pathlib import Path\n"
        f"turns = Path({str(folder / 'turns')!r})\n"
        "def setup(**params):\n"
        "    global given\n"
        "    given = params\n"
        "def round():\n"
        f"    turns.open('a').write({name!r} + ' ')\n"
        f"    {round_body}\n"
    )
    return Contestant(name, file, params=params)


def test_contestants_take_turns(tmp_path: Path) -> None:
    result = run(
        Bench(
            name="turns",
            title="",
            contestants=(
                contestant(tmp_path, "a", "return 1.0"),
                contestant(tmp_path, "b", "return {'seconds': [2.0, 4.0], 'tokens': 7}"),
                contestant(tmp_path, "c", "print('chatter'); return given['speed']", speed=0.5),
            ),
            rounds=3,
            warmup=1,
            threads=1,
        )
    )
    # One warm-up and three rounds, in turn and back; the contestant that prints does not disturb the protocol.
    assert (tmp_path / "turns").read_text().split() == list("abcabccbaabc")
    a, b, c = result.outcomes
    assert a.rounds == [[1.0]] * 3
    assert b.rounds == [[2.0, 4.0]] * 3
    assert b.others == [{"tokens": 7}] * 3
    assert c.rounds == [[0.5]] * 3
    assert result.ratio("a", "b").value == pytest.approx(1 / 3)


@pytest.mark.sampled
def test_an_interleaved_run_of_the_same_work(tmp_path: Path) -> None:
    """The self-test pair with small matrices, both in this interpreter: from workers to table and file."""
    small = {"size": 32, "repeats": 2}
    bench = Bench(
        name="same",
        title="The same against the same",
        contestants=(
            Contestant("left", "matmul.py", params=small),
            Contestant("right", "matmul.py", params=small),
        ),
        goals=(Goal("left", "right", 1e9), Goal("left", "right", 1e9, "peak_rss")),
        rounds=3,
        warmup=1,
        threads=1,
        memory=True,
    )
    result = run(bench)
    assert result.ok
    console = Console(width=200)
    with console.capture() as shown:
        show(result, console)
    assert "left / it" in shown.get()
    assert "met" in shown.get()
    assert "missed" not in shown.get()

    written = json.loads(write(result, tmp_path).read_text())
    assert (tmp_path / "same.json").exists()
    assert written["threads"] == 1
    assert written["date"].endswith("Z")
    assert written["machine"]["cpu"]
    for side in written["contestants"]:
        assert side["threads"] == 1
        assert side["versions"]["torch"]
        assert side["python"]
        assert len(side["rounds"]) == 3
        assert all(len(samples) == 2 for samples in side["rounds"])
        assert side["peak_rss"] > side["peak_growth"] > 0
        assert side["seconds"]["low"] <= side["seconds"]["median"] <= side["seconds"]["high"]
    assert {r["measure"] for r in written["ratios"]} == {"seconds", "peak_rss", "peak_growth"}
    assert [g["met"] for g in written["goals"]] == [True, True]


def test_memory_is_what_the_rounds_took(tmp_path: Path) -> None:
    """32 MiB in the setup, freed before the rounds, do not count; 16 MiB in a round do."""
    file = tmp_path / "memory.py"
    file.write_text(
        "def setup():\n    bytearray(32 << 20)\ndef round():\n    bytearray(b'x') * (16 << 20)\n    return 1.0\n"
    )
    bench = Bench("memory", "", (Contestant("one", file),), rounds=1, warmup=0, threads=1, memory=True)
    growth = run(bench).outcomes[0].report["peak_growth"]
    assert 15 << 20 < growth < 20 << 20


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise RuntimeError('out of luck')", "out of luck"),
        ("return None", "positive seconds"),
        ("return 0.0", "positive seconds"),
        ("return {'tokens': 3}", "positive seconds"),
        ("import os; os.write(2, b'last words'); os._exit(3)", "last words"),
    ],
)
def test_a_contestant_that_fails_is_named_with_its_reason(tmp_path: Path, body: str, says: str) -> None:
    bench = Bench("bad", "", (contestant(tmp_path, "clumsy", body),), rounds=1, warmup=0, threads=1)
    with pytest.raises(BenchError, match="clumsy") as caught:
        run(bench)
    assert says in str(caught.value)


def test_a_missing_environment_or_file_is_named(tmp_path: Path) -> None:
    nowhere = Contestant("peer", "matmul.py", tmp_path / "no" / "python")
    with pytest.raises(BenchError, match="make bench"):
        run(Bench("x", "", (nowhere,)))
    with pytest.raises(BenchError, match="not there"):
        run(Bench("x", "", (Contestant("peer", "no_such_file.py"),)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"contestants": ()}, "at least one"),
        ({"contestants": (Contestant("a", "matmul.py"),) * 2}, "its own name"),
        ({"rounds": 0}, "at least 1 round"),
        ({"goals": (Goal("a", "z", 1.0),)}, "'z'"),
        ({"goals": (Goal("a", "a", 1.0, "joules"),)}, "joules"),
    ],
)
def test_a_bench_that_makes_no_sense_is_refused(changes: dict, says: str) -> None:
    fields = {"name": "x", "title": "", "contestants": (Contestant("a", "matmul.py"),)} | changes
    with pytest.raises(BenchError, match=says):
        Bench(**fields)


def made_up(**seconds_of: float) -> Result:
    contestants = tuple(Contestant(name, "matmul.py") for name in seconds_of)
    goal = Goal("ours", "theirs", 1 / 1.5)
    bench = Bench("made_up", "", contestants, goals=(goal,))
    report = {"versions": {}, "peak_rss": 1, "peak_growth": 1}
    outcomes = [
        Outcome(c, [[value]], [], report, 0.5 if value > 2 else 0.0)
        for c, value in zip(contestants, seconds_of.values(), strict=True)
    ]
    return Result(bench, outcomes, "")


def test_goals_are_limits_of_a_ratio() -> None:
    assert made_up(ours=1.0, theirs=1.5).ok
    assert not made_up(ours=1.0, theirs=1.4).ok


def test_the_table_says_when_a_goal_is_missed_or_a_worker_did_not_wait() -> None:
    console = Console(width=200)
    with console.capture() as shown:
        show(made_up(ours=3.0, theirs=1.0), console)
    assert "missed" in shown.get()
    assert "not a fair run" in shown.get()
    assert "ours took 50.0%" in shown.get()


def test_the_callers_thread_settings_do_not_reach_a_contestant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setenv("OTHER", "kept")
    body = "import os; return {'seconds': 1.0, 'env': dict(os.environ)}"
    result = run(Bench("env", "", (contestant(tmp_path, "a", body),), rounds=1, warmup=0, threads=2))
    seen = result.outcomes[0].others[0]["env"]
    assert seen["OMP_NUM_THREADS"] == "2"
    assert "OMP_WAIT_POLICY" not in seen
    assert seen["OTHER"] == "kept"


def test_every_bench_there_is_can_be_loaded() -> None:
    assert "selftest" in names()
    assert not set(names()) & {*MACHINERY, "accelerator", "accelerator_timing"}
    for name in names():
        bench = load(name)
        assert bench.title
        assert all(c.path.exists() for c in bench.contestants)


def test_some_contestants_of_a_bench_keep_their_goals() -> None:
    part = only(load("smollm2_decode"), (" 16", " 2048"))
    kept = {contestant.name for contestant in part.contestants}
    assert kept == {f"{one} {n}" for one in ("vantage", "llama.cpp", "transformers") for n in (16, 2048)}
    assert {goal.of for goal in part.goals} == {"vantage 16", "vantage 2048"}
    assert {goal.over for goal in part.goals} < kept
    with pytest.raises(BenchError, match="vantage 512"):
        only(load("smollm2_decode"), ("17",))


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "selftest" in capsys.readouterr().out
    assert main(["no_such_bench"]) == 2
    assert "selftest" in capsys.readouterr().err
