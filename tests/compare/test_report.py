"""The report folder: a page that needs nothing else, the same every time, and true to the results."""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.compare.synthetic import experiment, falls
from vantage.compare.report import CSV, JSON, PAGE, VERDICTS, machine, write_report
from vantage.compare.results import RunResult
from vantage.errors import BadInput

VOID = {"meta", "link", "br", "hr", "img", "input"}
SKILLS = {"none": falls(300), "sinusoidal": falls(8), "rope": falls(25), "none-bidirectional": lambda n: 0.5}
FACTS: dict[str, Any] = {
    "train_length": 20,
    "command": "vantage compare --tasks ordering --seeds 3",
    "settings": {"steps": 3000},
    "versions": {"torch": "2.11", "processor": "a machine"},
}


class Reader(HTMLParser):
    """Every tag closed in its turn, and what the page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def results() -> list[RunResult]:
    groups = ("ascending", "swap 1", "swap 16", "swap 2")
    found = experiment(SKILLS, groups=groups, diverged=[("sinusoidal", 1)])
    found += experiment({"none": falls(90), "rope": falls(12)}, tasks=("copy-one",))
    return found + experiment({"rope": lambda n: 3 + n / 50}, tasks=("text",), losses=True)


@pytest.fixture(scope="module")
def folder(results: list[RunResult], tmp_path_factory: pytest.TempPathFactory) -> Path:
    facts = {**FACTS, "published": ("length-generalization", "alibi", "randomized")}
    return write_report(tmp_path_factory.mktemp("report"), facts, results).parent


def test_the_page_needs_nothing_else(folder: Path) -> None:
    page = read(folder / PAGE)
    assert not page.named("script")
    assert not page.named("img")
    assert [link["href"] for link in page.named("link")] == ["data:,"]
    assert {link["href"] for link in page.named("a")} >= {CSV, JSON}
    text = (folder / PAGE).read_text()
    assert not re.search(r"https?://|@import|url\(", text)


def test_the_page_can_be_read_by_everyone(folder: Path) -> None:
    page = read(folder / PAGE)
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert max(ids.values()) == 1
    assert page.named("html")[0]["lang"] == "en"
    assert all(cell.get("scope") in ("row", "col") for cell in page.named("th"))
    pictures = [svg for svg in page.named("svg") if svg.get("aria-hidden") != "true"]
    assert len(pictures) == 3
    for svg in pictures:
        assert svg["role"] == "img"
        assert set(str(svg["aria-labelledby"]).split()) <= set(ids)
    for link in page.named("a"):
        target = str(link["href"])
        assert not target.startswith("#") or target[1:] in ids
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_page_says_what_was_found(folder: Path) -> None:
    text = read(folder / PAGE).text
    for wanted in (
        "21 runs: 3 tasks, 4 entries, 3 seeds",
        "1 diverged and counts as 0",
        "With 3 seeds the intervals are wide",
        "trained to 20",
        "swap 1 (adjacent)",
        "Mean reciprocal rank",
        "101,378",
        "2.5 × 10^12",
        "behind the best",
        "vantage compare --tasks ordering --seeds 3",
        "a machine",
        "copy one repeated token",
        "[R]",
        "not measured",
        "stays at chance in ordering",
    ):
        assert wanted in text
    assert text.index("swap 1 (adjacent)") < text.index("swap 2") < text.index("swap 16")


def test_verdicts_are_a_table_too(folder: Path) -> None:
    lines = list(csv.DictReader((folder / VERDICTS).read_text().splitlines()))
    said = json.loads((folder / JSON).read_text())["verdicts"]
    rows = sum(1 + len(one["beside"]) for found in said.values() for one in found)
    assert len(lines) == rows
    (row,) = [line for line in lines if line["what"].startswith("copy one repeated token") and line["entry"] == "none"]
    assert row["published"] == "0.986"
    assert row["mark"] == "R"
    assert 0 <= float(row["low"]) <= float(row["ours"]) <= float(row["high"]) <= 1
    assert {line["verdict"] for line in lines if line["about"] == "controls"} == {"holds"}


def test_the_same_runs_read_in_other_ways_are_counted_once(tmp_path: Path) -> None:
    """Three readings of a text are shown, and have one voice in ranks, claims and beside a paper."""
    better = {"alibi": lambda n: 3.0, "rope": lambda n: 3.0 + n / 50}
    copies = experiment({"alibi": falls(5), "rope": falls(300)}, tasks=("copy",))
    found = copies + experiment(better, tasks=("text", "text, sliding", "text, over position"), losses=True)
    once = copies + experiment(better, tasks=("text",), losses=True)
    said = []
    for name, results in (("all", found), ("once", once)):
        facts = {**FACTS, "published": "alibi"}
        said.append(json.loads((write_report(tmp_path / name, facts, results).parent / JSON).read_text()))
    assert "text, sliding" in said[0]["tasks"]
    assert said[0]["verdicts"] == said[1]["verdicts"]
    assert {e: r["value"] for e, r in said[0]["mean_reciprocal_rank"].items()} == {"alibi": 0.75, "rope": 0.75}
    assert "12 runs: 2 tasks, 2 entries, 3 seeds" in read(tmp_path / "all" / PAGE).text


def test_csv_has_a_line_for_each_run_and_length(folder: Path, results: list[RunResult]) -> None:
    lines = list(csv.DictReader((folder / CSV).read_text().splitlines()))
    assert len(lines) == sum(len(run.scores) or 1 for run in results)
    first = next(line for line in lines if line["task"] == "ordering" and line["length"] == "40")
    run = next(r for r in results if (r.key.task, r.key.position, r.key.seed) == ("ordering", first["position"], 0))
    score = run.at(40)
    assert score is not None
    assert float(first["exact"]) == score.exact
    assert first["beyond_training"] == "yes"
    assert float(first["exact: swap 1"]) == score.groups["swap 1"]
    assert [line["length"] for line in lines if line["diverged"] == "yes"] == [""]


def test_json_says_what_the_page_says(folder: Path, results: list[RunResult]) -> None:
    said = json.loads((folder / JSON).read_text())
    assert len(said["runs"]) == len(results)
    ordering = said["tasks"]["ordering"]
    assert ordering["trained_to"] == 20
    best = ordering["places"][0]["entry"]
    assert best == "none"
    value, low, high = (ordering["beyond"][best][name] for name in ("value", "low", "high"))
    assert f"{value:.3f} [{low:.3f}, {high:.3f}]" in read(folder / PAGE).text
    assert said["tasks"]["text"]["measure"] == "perplexity"
    assert {v["word"] for v in said["verdicts"]["controls"]} == {"holds"}
    assert set(said["verdicts"]) >= {"claims", "published: randomised"}


def test_the_same_results_give_the_same_report_in_whatever_order(results: list[RunResult], tmp_path: Path) -> None:
    """As after a kill and a resumption: other times, another order."""
    shuffled = [replace(run, seconds=run.seconds * 3) for run in results]
    random.Random(1).shuffle(shuffled)
    one, two = write_report(tmp_path / "a", FACTS, results), write_report(tmp_path / "b", FACTS, shuffled)
    for name in (PAGE, CSV, VERDICTS, JSON):
        assert (one.parent / name).read_bytes() == (two.parent / name).read_bytes()
    assert sorted(path.name for path in one.parent.iterdir()) == sorted([PAGE, CSV, VERDICTS, JSON])


def test_names_are_not_taken_for_markup(tmp_path: Path) -> None:
    odd = '<script>alert("1")</script>'
    facts = {**FACTS, "title": odd, "command": odd, "notes": [odd], "settings": {odd: odd}}
    page = read(
        write_report(tmp_path, facts, experiment({odd: falls(9), "rope": falls(5)}, tasks=(odd,), groups=(odd,)))
    )
    assert not page.named("script")
    assert odd in page.text


@pytest.mark.parametrize(
    "found",
    [
        experiment({"rope": falls(9)}),
        experiment({"rope": falls(9), "t5": falls(8)}, seeds=1),
        experiment({"rope": falls(9), "t5": falls(8)}, diverged=[("rope", 0), ("rope", 1), ("rope", 2)]),
        experiment({"rope": falls(9)}, diverged=[("rope", 0), ("rope", 1), ("rope", 2)]),
        experiment({"rope": falls(9)}, lengths=(10, 20)),
        experiment({"rope": falls(9)}, lengths=(40,)),
        experiment({"rope": lambda n: 3.0, "t5": lambda n: 900.0}, seeds=1, tasks=("text",), losses=True),
        experiment({f"e{i}": falls(9 + i) for i in range(12)}, seeds=2),
        experiment({"rope": falls(9)})[:2] + experiment({"t5": falls(9)})[2:],
    ],
    ids=[
        "alone",
        "one seed",
        "all of one diverged",
        "all diverged",
        "none beyond",
        "one length",
        "loss",
        "many",
        "split",
    ],
)
def test_poor_experiments_have_a_report_too(found: list[RunResult], tmp_path: Path) -> None:
    page = read(write_report(tmp_path, FACTS, found))
    assert "nan" not in page.text.lower().split()
    assert "inf" not in page.text.lower().split()
    json.loads((tmp_path / JSON).read_text())


def test_one_seed_is_said_to_be_one(tmp_path: Path) -> None:
    page = read(write_report(tmp_path, FACTS, experiment({"rope": falls(9)}, seeds=1)))
    assert "One seed says nothing about another" in page.text


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({}, "train_length"),
        ({"train_length": 20, "setings": {}}, "Did you mean 'settings'"),
        ({"train_length": 20, "published": "alibbi"}, "Did you mean 'alibi'"),
        ({"train_length": {"copy": 20}}, "no train_length for 'ordering'"),
    ],
)
def test_facts_that_cannot_be_are_refused(facts: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=complaint):
        write_report(tmp_path / "new", facts, experiment({"rope": falls(9)}))
    assert not (tmp_path / "new").exists()


def test_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="at least one"):
        write_report(tmp_path, FACTS, [])


def test_the_machine_is_named() -> None:
    assert {"vantage", "python", "torch", "processor", "accelerator"} <= set(machine())
    assert all(machine().values())
