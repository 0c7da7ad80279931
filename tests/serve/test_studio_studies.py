"""Studies and exercises in the studio: listed, run with a reader who may leave, graded one at a time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.processes import PATIENCE, until
from tests.serve.studios import Running, of, running, told
from vantage.figures import Figure, Line, Lines
from vantage.serve.studio.studies import routes
from vantage.studies.exercises import exercises
from vantage.studies.registry import studies
from vantage.studies.study import Number, Parameter, Result, Study

API = "/studio/api"


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("studies")) as it:
        yield it


@pytest.fixture(scope="module")
def http(studio: Running) -> Iterator[httpx.Client]:
    with studio.http() as made:
        yield made


# ---- studies


def test_all_studies_are_listed(http: httpx.Client) -> None:
    found = http.get(f"{API}/studies").json()
    assert [one["tag"] for one in found] == list(studies())
    for one in found:
        assert one["title"]
        assert one["statement"]
        assert len(one["explanation"].split("\n\n")) == 2
        assert one["seconds"] > 0
        for parameter in one["parameters"]:
            assert parameter["choices"] or parameter["low"] is not None, (one["tag"], parameter)


def test_a_study_runs_with_other_parameters(studio: Running) -> None:
    quick = next(study for study in studies().values() if study.tag == "A2")
    events = studio.events(f"/studies/{quick.tag}", {"values": {}})
    assert events[0][0] == "progress"
    assert [name for name, _ in events].count("result") == 1
    result = of(events, "result")[0]
    assert result["verdict"] in ("agrees", "erratum", "mixed")
    assert result["words"]
    assert result["command"] == "vantage study run A2"
    direct = quick.run(quick.values({}), lambda share, doing: None)
    assert [number["ours"] for number in result["numbers"]] == [number.ours for number in direct.numbers]
    assert [figure["name"] for figure in result["figures"]] == [figure.name for figure in direct.figures]
    shares = [said["share"] for said in of(events, "progress")]
    assert all(0 <= share <= 1 and math.isfinite(share) for share in shares)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("studies/Z9", {}, 404, "there is no study 'Z9'"),
        ("studies/A2", {"values": {"colour": 1}}, 400, "A2 has no parameter 'colour'"),
        ("studies/A2", {"values": {"x": None}}, 400, "values.x"),
        (
            "studies/A2",
            {"values": {str(n): 1 for n in range(40)}},
            400,
            "values has 40 fields, and must have at most 32",
        ),
        ("studies/A2", {"value": {}}, 400, "value is not a field that is known here. Did you mean 'values'?"),
        ("exercises/Z9/grade", {"code": "x"}, 404, "no exercise is called 'Z9'"),
        ("exercises/P10/grade", {}, 400, "code is missing, and must be given"),
        (
            "exercises/P10/grade",
            {"code": "x" * 300_000},
            400,
            "code has 300,000 characters, and must have at most 262,144",
        ),
        (
            "exercises/P10/grade",
            {"code": "# vantage exercise A2\n"},
            400,
            "says it is exercise A2, and P10 was asked for",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_in_words(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = http.post(f"{API}/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def endless(ended: threading.Event, *, silent: bool = False) -> Study:
    """A study that goes on until its progress is refused."""

    def run(values: Any, progress: Any) -> Result:
        try:
            if silent:
                time.sleep(1.5)
            for n in range(10**6):
                progress(n / 10**6, f"round {n}")
                time.sleep(0.01)
        finally:
            ended.set()
        return Result("agrees", "", (Number("rounds", 1),), (figure(),))

    return Study("A2", "endless", ("S0",), "s", "one\n\ntwo", run, (Parameter("n", 1, "a number", 1, 5),))


def figure() -> Figure:
    return Figure("f", "c", (Lines("t", "x", "y", (Line("l", [0.0], [1.0]),)),))


def busy(studio: Running) -> int:
    return sum(studio.studio.thread(name).busy for name in routes.THREADS)


def test_who_leaves_ends_the_study(studio: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(routes, "find", lambda tag: endless(ended))
    with studio.http() as http, http.stream("POST", f"{API}/studies/A2", json={"values": {"n": 3}}) as answer:
        events = told(answer)
        assert [next(events)[0] for _ in range(3)] == ["progress"] * 3
        assert busy(studio) == 1
    assert ended.wait(PATIENCE)
    until(lambda: busy(studio) == 0)


def test_two_run_at_once(studio: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(routes, "find", lambda tag: endless(ended))
    held = []
    try:
        for _ in range(2):
            http = studio.http()
            stream = http.stream("POST", f"{API}/studies/A2", json={})
            events = told(stream.__enter__())
            held.append((http, stream, events))
            assert next(events)[0] == "progress"
        assert {studio.studio.thread(name).busy for name in routes.THREADS} == {1}
    finally:
        for http, stream, _ in held:
            stream.__exit__(None, None, None)
            http.close()
    until(lambda: busy(studio) == 0)


def test_a_study_that_fails_says_so(studio: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(values: Any, progress: Any) -> Result:
        progress(0.5, "half of it")
        raise RuntimeError("a secret of the machine")

    broken = Study("A2", "t", ("S0",), "s", "one\n\ntwo", fails)
    monkeypatch.setattr(routes, "find", lambda tag: broken)
    events = studio.events("/studies/A2", {})
    assert [name for name, _ in events] == ["progress", "progress", "error"]
    assert "secret" not in events[-1][1]["message"]
    assert "server's log" in events[-1][1]["message"]


# ---- exercises


def test_exercises_are_listed_without_their_answers(http: httpx.Client) -> None:
    found = http.get(f"{API}/exercises").json()
    there = exercises()
    assert [one["tag"] for one in found] == list(there)
    for one in found:
        assert set(one) == {"tag", "title", "task", "starter"}
        assert one["starter"] != there[one["tag"]].answer


@pytest.mark.sampled
def test_an_answer_is_graded(http: httpx.Client) -> None:
    said = http.get(f"{API}/exercises/P10/answer").json()
    assert said["words"]
    right = http.post(f"{API}/exercises/P10/grade", json={"code": said["code"]})
    assert right.status_code == 200, right.text
    assert right.json()["passed"], right.json()
    assert all(check["passed"] for check in right.json()["checks"])
    starter = next(one for one in http.get(f"{API}/exercises").json() if one["tag"] == "P10")["starter"]
    wrong = http.post(f"{API}/exercises/P10/grade", json={"code": f"{starter}\nprint('hello')\n"}).json()
    assert not wrong["passed"]
    assert any(check["words"] for check in wrong["checks"])
    assert "hello" in wrong["output"]


def test_grading_needs_the_token(studio: Running) -> None:
    with studio.http(token=None) as http:
        assert http.post(f"{API}/exercises/P10/grade", json={"code": "print(1)"}).status_code == 403
    with studio.http(Origin="http://evil.example") as http:
        assert http.post(f"{API}/exercises/P10/grade", json={"code": "print(1)"}).status_code == 403
    with studio.http(Host="evil.example") as http:
        assert http.post(f"{API}/exercises/P10/grade", json={"code": "print(1)"}).status_code == 403
