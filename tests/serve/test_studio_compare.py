"""Comparisons in the studio: started from a form, live, stopped and gone on with; reports under names we made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.compare.synthetic import experiment as synthetic
from tests.compare.synthetic import falls
from tests.processes import PATIENCE, until
from tests.serve.studios import Running, of, running, told
from vantage.compare import background
from vantage.compare.experiment import Experiment
from vantage.compare.metadata import report_metadata
from vantage.compare.report import write_report
from vantage.compare.results import FILE, write_results
from vantage.compare.run import claim_folder
from vantage.serve.studio.compare.comparisons import Comparisons, curves, rows
from vantage.serve.studio.compare.learning import LearningCurves
from vantage.serve.studio.compare.routes import comparisons_in

API = "/studio/api"
DONE, HALF = "20260102-030405-abcd", "20260102-030406-abcd"
LENGTHS = (20, 40, 60, 80, 100)
EXPERIMENT = Experiment(("ordering",), ("rope", "alibi"), train_length=20, test_lengths=LENGTHS, seeds=3, steps=10)
SMALL = {
    "tasks": ["ordering"],
    "positions": ["none", "rope"],
    "train_length": 6,
    "test_lengths": [6, 12],
    "seeds": 1,
    "batch": 4,
    "width": 16,
    "layers": 1,
    "heads": 2,
    "test_examples": 8,
}


def kept(folder: Path, *, report: bool) -> None:
    """A study as its process leaves it behind."""
    claim_folder(folder, EXPERIMENT.fingerprint(), {"study": asdict(EXPERIMENT)}, resume=False)
    results = synthetic({"rope": falls(40), "alibi": falls(400)}, lengths=(20, 40, 60, 80, 100))
    write_results(folder / FILE, results if report else results[:3])
    if report:
        write_report(folder, report_metadata(EXPERIMENT, folder), results)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("compare")
    kept(folder / "comparisons" / DONE, report=True)
    kept(folder / "comparisons" / HALF, report=False)
    (folder / "secret").mkdir()
    (folder / "secret" / "index.html").write_text("secret")
    (folder / "comparisons" / "other").mkdir()
    with running(folder) as it:
        yield it


@pytest.fixture(scope="module")
def http(studio: Running) -> Iterator[httpx.Client]:
    with studio.http() as made:
        yield made


def heard(http: httpx.Client, name: str) -> list[tuple[str, dict[str, Any]]]:
    with http.stream("GET", f"{API}/compare/{name}/events") as answer:
        assert answer.status_code == 200
        return list(told(answer))


# ---- what was done before


def test_reports_are_listed_and_shown(http: httpx.Client) -> None:
    title = "ordering: rope, alibi"
    found = http.get(f"{API}/reports").json()
    assert [(one["name"], one["when"], one["title"]) for one in found] == [(DONE, "2026-01-02T03:04:05", title)]
    listed = http.get(f"{API}/compare").json()
    assert [(one["name"], one["state"]) for one in listed] == [(HALF, "stopped"), (DONE, "done")]
    page = http.get(f"{API}/reports/{DONE}/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script" not in policy
    assert "Which encoding holds" in page.text
    assert "<script" not in page.text
    assert http.get(f"{API}/reports/{DONE}/scores.csv").text.startswith("task,position")
    assert http.get(f"{API}/reports/{DONE}/report.json").json()["study"]["train_length"] == 20


@pytest.mark.parametrize(
    "path",
    [
        "other/",
        "..%2Fsecret/",
        "..%2F..%2Fsecret/",
        "%2Fetc/",
        f"{HALF}/",
        f"{DONE}/study.json",
        f"{DONE}/..%2F{DONE}%2Findex.html",
        f"{DONE}%2F..%2F..%2Fsecret/",
        "20260102-030405-abce/",
    ],
)
def test_no_other_file_is_reached(http: httpx.Client, path: str) -> None:
    answer = http.get(f"{API}/reports/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]
    assert answer.headers["content-type"] == "application/json"


def test_a_link_out_of_the_folder_is_no_report(studio: Running, http: httpx.Client) -> None:
    link = studio.studio.folder / "comparisons" / "20260102-030407-abcd"
    link.symlink_to(studio.studio.folder / "comparisons" / DONE)
    try:
        assert link.name not in [one["name"] for one in http.get(f"{API}/reports").json()]
        assert http.get(f"{API}/reports/{link.name}/").status_code == 404
    finally:
        link.unlink()


def test_events_of_what_does_not_run_any_more(http: httpx.Client) -> None:
    done = heard(http, DONE)
    assert [name for name, _ in done] == ["curve", "progress", "done"]
    assert done[-1][1]["report"] == DONE
    assert done[-1][1]["short"][0].startswith("ordering: beyond the training length “alibi” has the best mean")
    half = heard(http, HALF)
    assert [name for name, _ in half] == ["curve", "progress", "error"]
    assert "it can be continued" in half[-1][1]["message"]
    assert sum(row["runs"] for row in of(half, "progress")[0]["rows"]) == 3


def test_the_curve_is_that_of_the_results() -> None:
    results = synthetic({"rope": falls(40), "alibi": falls(400)}, seeds=3)
    made = curves(results, 20, {})
    panel = asdict(made)["panels"][0]
    by_entry = {line["name"]: dict(zip(line["x"], line["y"], strict=True)) for line in panel["lines"]}
    for row in rows(results, {}):
        assert row.runs == 3
        for at in row.at:
            own = [r.at(at.length).exact for r in results if r.key.entry == row.entry]
            assert at.score == pytest.approx(sum(own) / 3)
            assert by_entry[row.entry][at.length] == pytest.approx(at.score)
    assert all(
        low <= y <= high for ln in panel["lines"] for low, y, high in zip(ln["low"], ln["y"], ln["high"], strict=True)
    )


def test_the_learning_curve_is_the_mean_of_the_models_so_far() -> None:
    learning = LearningCurves()
    assert learning.figure() is None
    learning.take("copy", "rope", 10, 600, 9.0)
    learning.forget("copy", "rope")  # that was a rate that was tried
    for step, loss in ((1, 4.0), (9, 2.0), (600, 1.0), (10, 6.0)):  # 600 steps in 60 stretches of 10
        learning.take("copy", "rope", step, 600, loss)
    learning.take("sort", "none", 5, 5, 0.5)
    figure = learning.figure()
    assert figure is not None
    copy, sort = asdict(figure)["panels"]
    assert (copy["title"], sort["title"]) == ("copy", "sort")
    assert (copy["lines"][0]["x"], copy["lines"][0]["y"]) == ([10.0, 600.0], [4.0, 1.0])
    assert (sort["lines"][0]["x"], sort["lines"][0]["y"]) == ([5.0], [0.5])
    assert learning.version == 7


# ---- a real one


@pytest.mark.sampled
def test_a_comparison_runs_and_its_report_is_shown(studio: Running, http: httpx.Client) -> None:
    answer = http.post(f"{API}/compare", json=SMALL | {"steps": 3})
    assert answer.status_code == 200, answer.text
    name = answer.json()["id"]
    again = http.post(f"{API}/compare", json=SMALL | {"steps": 3})
    assert again.status_code == 409
    assert f"the comparison {name} is running" in again.json()["error"]["message"]
    events = heard(http, name)
    assert events[-1][0] == "done", events[-1]
    assert events[-1][1]["report"] == name
    assert "no entry learned the task" in events[-1][1]["short"][0]
    last = of(events, "progress")[-1]
    assert last["done"] == last["total"] > 0
    assert {row["entry"]: row["runs"] for row in last["rows"]} == {"none": 1, "rope": 1}
    assert {line["name"] for line in of(events, "curve")[-1]["panels"][0]["lines"]} == {"none", "rope"}
    learning = of(events, "learning")
    assert [name for name, _ in events].index("learning") < [name for name, _ in events].index("curve")
    assert {line["name"] for line in learning[-1]["panels"][0]["lines"]} == {"none", "rope"}
    assert "ordering" in http.get(f"{API}/reports/{name}/").text
    over = http.post(f"{API}/compare/{name}/resume", json={})
    assert over.status_code == 409
    assert "is finished" in over.json()["error"]["message"]


@pytest.mark.slow
def test_stopped_gone_on_with_and_ended_with_the_studio(tmp_path: Path) -> None:
    with running(tmp_path) as studio, studio.http() as http:
        there: Comparisons = studio.studio.part(comparisons_in)
        name = http.post(f"{API}/compare", json=SMALL | {"steps": 800}).json()["id"]
        one = there.get(name)
        assert one is not None
        until(lambda: one.progress.done > 0)
        assert http.delete(f"{API}/compare/{name}").json() == {"id": name, "stopped": True}
        assert not one.running
        assert heard(http, name)[-1][1]["code"] == "stopped"
        until(lambda: has_ended(one._process.pid))
        assert http.post(f"{API}/compare/{name}/resume", json={}).json() == {"id": name}
        assert heard(http, name)[-1][0] == "done"
        name = http.post(f"{API}/compare", json=SMALL | {"steps": 200_000}).json()["id"]
        other = there.get(name)
        assert other is not None
        until(lambda: other.progress.done > 0)
    until(lambda: has_ended(other._process.pid))


@pytest.mark.slow
def test_a_study_ends_when_whoever_started_it_is_gone(tmp_path: Path) -> None:
    there = Comparisons(tmp_path)
    one = there.start(Experiment(positions=("none", "rope"), steps=100_000), None)
    until(lambda: one.progress.total > 0)
    assert one._process.stdin is not None
    one._process.stdin.close()  # as the system does when a process dies
    one._process.wait(PATIENCE)
    until(lambda: has_ended(one._process.pid))


def has_ended(group: int) -> bool:
    """Whether nothing of a process group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.sampled
def test_too_small_a_budget_is_said_when_it_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    background.write_request(tmp_path, Experiment(positions=("rope",), shape=EXPERIMENT.shape), 0.001)
    with pytest.raises(background.VantageError, match="allow several times as much"):
        background.run(tmp_path)
    assert '"event": "note"' in capsys.readouterr().out


# ---- what is refused


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tasks": []}, "tasks is empty, and must have at least 1 entry"),
        ({"tasks": ["dance"]}, "no task is called 'dance'"),
        ({"tasks": ["text"]}, "no task is called 'text'"),
        ({"positions": ["rop"]}, "Did you mean 'rope'?"),
        ({"positions": ["rope", "rope"], "attention": ["multi"]}, "no attention is called 'multi'"),
        ({"attention": ["multi-head", "multi-head"]}, "names one of them twice"),
        ({"train_length": 0}, "train_length is 0, and must be at least 1"),
        ({"train_length": 10**6}, "train_length is 1,000,000, and must be at most 512"),
        ({"test_lengths": [5000]}, "test_lengths.0 is 5,000, and must be at most 2,048"),
        ({"seeds": 100}, "seeds is 100, and must be at most 16"),
        ({"steps": 0}, "steps is 0, and must be at least 1"),
        ({"steps": "9"}, "steps is a text of 1 character, and must be a whole number"),
        ({"budget": "soon"}, "write it as 90s, 30m or 2h"),
        ({"budget": "1s"}, "give 10 seconds to 24 hours"),
        ({"budget": 10**6}, "give 10 seconds to 24 hours"),
        ({"width": 15}, "make it a multiple of twice the heads"),
        ({"text": ["/etc/passwd"]}, "text is not a field that is known here"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(http: httpx.Client, body: dict[str, Any], words: str) -> None:
    answer = http.post(f"{API}/compare", json=SMALL | body)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "x/events"), ("DELETE", "x"), ("POST", "x/resume")])
def test_a_comparison_that_is_not_there(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, f"{API}/compare/{path}", json={} if method == "POST" else None)
    assert answer.status_code == 404
    assert "there is no comparison 'x'" in answer.json()["error"]["message"]


def test_choices_are_what_can_be_asked_for(http: httpx.Client) -> None:
    found = http.get(f"{API}/compare/choices").json()
    assert "text" not in found["tasks"]
    for name in ("tasks", "positions", "attention"):
        assert set(found["defaults"][name]) <= set(found[name])
        assert len(found[name]) > 2
    assert {"ordering", "parity", "lookup"} <= set(found["controlled"])
    assert not {"copy", "sort", "addition", "passkey"} & set(found["controlled"])
    assert found["control"] in found["positions"]
    for name in (*found["tasks"], *found["positions"], *found["attention"]):  # what a pointer on it is told
        assert len(found["about"].get(name, "")) > 15, name
