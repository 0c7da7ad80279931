"""Where nothing was learned nobody wins: in a task, over all tasks, on the page, as JSON and in the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compare.synthetic import experiment, falls
from vantage.cli.compare_show import show_verdicts
from vantage.compare.learning import guess_level, task_learning
from vantage.compare.published import compare_with
from vantage.compare.report import JSON, PAGE, write_report
from vantage.compare.result_table import ResultTable
from vantage.compare.results import RunResult
from vantage.compare.verdicts import comparisons, controls, overall_comparisons, rank_entries

METADATA: dict[str, Any] = {"train_length": 20}
AT_CHANCE = {"none": lambda n: 0.51, "rope": lambda n: 0.5, "alibi": lambda n: 0.55}
LEARNED = {"none": falls(300), "rope": falls(8), "alibi": falls(60)}


def table(results: list[RunResult], **measures: str) -> ResultTable:
    return ResultTable(tuple(results), 20, measures)


def reported(folder: Path, results: list[RunResult]) -> dict[str, Any]:
    return json.loads((write_report(folder, METADATA, results).parent / JSON).read_text())


# ---- who learned


def test_half_of_the_way_from_a_guess_to_perfect() -> None:
    found = task_learning(table(experiment({"a": lambda n: 0.70, "b": lambda n: 0.80}, scatter=0.0)), "ordering")
    assert (found.guess, found.bar) == (0.5, 0.75)
    assert (found.learned, found.not_learned) == (("b",), ("a",))


def test_chance_comes_from_the_task_and_from_what_is_scored() -> None:
    results = experiment({"a": lambda n: 0.6}, tasks=("copy", "copy-one", "parity", "not-ours"))
    by_rows, by_tokens = table(results), table(results, copy="tokens", parity="tokens")
    assert guess_level(by_rows, "parity") == 0.5
    assert guess_level(by_tokens, "parity") == pytest.approx(0.75, abs=0.02)
    assert guess_level(by_rows, "copy") == pytest.approx(0.0, abs=0.002)
    assert guess_level(by_tokens, "copy") == pytest.approx((20 / 26 + 1) / 21, abs=0.02)
    assert guess_level(by_rows, "not-ours") is None
    assert guess_level(by_rows, "parity", {"parity": 0.3}) == 0.3


def test_a_text_is_learned_when_context_helps() -> None:
    results = table(experiment({"a": lambda n: 3.0, "b": lambda n: 3.38}, tasks=("text",), losses=True, scatter=0.0))
    assert task_learning(results, "text", {"text": 3.4}).learned == ("a",)
    assert not task_learning(results, "text").not_learned  # what a guess costs is not known


# ---- nobody did


def test_nobody_is_named_where_all_are_at_chance() -> None:
    """With 20 seeds their differences are sure, and they still say nothing."""
    results = table(experiment(AT_CHANCE, seeds=20, scatter=0.002, rows=5000))
    assert task_learning(results, "ordering").nobody
    assert comparisons(results, "ordering") == []
    assert {ranking.word for ranking in rank_entries(results, "ordering")} == {"not learned"}


def test_the_report_says_so_and_names_no_winner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = reported(tmp_path, experiment(AT_CHANCE, seeds=8))
    page = (tmp_path / PAGE).read_text()
    show_verdicts(tmp_path / JSON)
    printed = capsys.readouterr().out
    for text in ("\n".join(said["short"]), page, printed):
        assert "ordering: no entry learned the task." in text
        assert "a guess gets 0.50" in text
        assert "So no entry learned the task, and nothing is said about which is better." in text
        assert "has the best mean" not in text
        assert "behind the best" not in text
    assert said["mean_reciprocal_rank"] == {}
    assert said["tasks"]["ordering"]["pairs"] == []
    assert said["overall"]["pairs"] == []


def test_a_task_that_nobody_learned_has_no_voice_among_the_others(tmp_path: Path) -> None:
    results = experiment(LEARNED, seeds=8, tasks=("ordering", "even-pairs"))
    results += experiment({**AT_CHANCE, "rope": lambda n: 0.7}, seeds=8, tasks=("parity",))
    said = reported(tmp_path, results)
    ordering, *_, parity, together = said["short"]
    assert "parity: no entry learned the task." in parity
    assert ordering.startswith("even-pairs: beyond the training length “none” has the best mean, ")
    assert together.startswith("Both tasks together, each counting the same: “none” has the best mean")
    assert together.endswith("Left out: parity.")
    assert said["overall"]["tasks"] == ["even-pairs", "ordering"]
    assert set(said["mean_reciprocal_rank"]) == set(LEARNED)
    assert said["mean_reciprocal_rank"]["none"]["value"] == 1.0


def test_who_did_not_learn_is_named_beside_those_who_did(tmp_path: Path) -> None:
    said = reported(tmp_path, experiment({**LEARNED, "t5": lambda n: 0.52, "fire": lambda n: 0.53}, seeds=8))
    (sentence,) = said["short"]
    assert "Not learned at the lengths of the training: fire, t5." in sentence
    pairs = {frozenset((pair["better"], pair["worse"])) for pair in said["tasks"]["ordering"]["pairs"]}
    assert len(pairs) == 9  # ten, but for the two that learned nothing
    assert frozenset(("t5", "fire")) not in pairs
    assert "9 pairs are decided." in sentence


def test_a_paper_is_not_confirmed_by_what_nobody_learned() -> None:
    fails = {"none": lambda n: 0.3, "t5": lambda n: 0.2, "rope": lambda n: 0.05, "alibi": lambda n: 0.1}
    results = experiment(fails, tasks=("copy", "reverse"), seeds=5)
    found = compare_with("length-generalization", results, 20)
    assert {verdict.word for verdict in found} == {"not measured"}
    assert any("No entry of ours learned the task" in verdict.why for verdict in found)


# ---- over all tasks


def test_all_tasks_together_are_paired_by_seed_and_corrected() -> None:
    """Two tasks that pull in opposite directions leave nothing to decide."""
    one = experiment({"a": lambda n: 0.9, "b": lambda n: 0.8}, tasks=("ordering",), seeds=8, scatter=0.02)
    other = experiment({"a": lambda n: 0.8, "b": lambda n: 0.9}, tasks=("parity",), seeds=8, scatter=0.02)
    (pair,) = overall_comparisons(table(one + other))
    assert not pair.distinguishable
    (same,) = overall_comparisons(
        table(one + experiment({"a": lambda n: 0.95, "b": lambda n: 0.8}, tasks=("parity",), seeds=8, scatter=0.02))
    )
    assert (same.better, same.distinguishable) == ("a", True)
    assert same.difference.value == pytest.approx(0.125, abs=0.02)
    assert overall_comparisons(table(one)) == []


def test_a_control_within_a_twentieth_of_chance_holds_however_many_seeds_say_so() -> None:
    """An interval that is narrow and near, and leaves out chance itself by a hair, is near."""
    results = experiment({"none-bidirectional": lambda n: 0.51}, seeds=20, scatter=0.0, rows=20_000)
    (verdict,) = controls(table(results))
    assert verdict.effect is not None
    assert not verdict.effect.holds(0.5)
    assert verdict.word == "holds"
