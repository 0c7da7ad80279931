"""The papers' numbers, and verdicts on results that were made to agree with them or not to."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from tests.compare.synthetic import experiment
from vantage.compare import published
from vantage.compare.published import compare_with, names, paper, rows, same_task
from vantage.compare.verdicts import Verdict
from vantage.errors import BadInput

COPY_ONE = {"none": 0.986, "t5": 0.771, "alibi": 0.289, "rope": 0.0, "sinusoidal": 0.0}


def beyond(numbers: Mapping[str, float], task: str = "copy-one", **settings: float) -> list[Verdict]:
    """An experiment whose entries have these accuracies beyond the training length."""
    skills = {name: (lambda n, share=share: 0.99 if n <= 20 else share) for name, share in numbers.items()}
    return compare_with("length-generalization", experiment(skills, tasks=(task,), **settings), 20)


def of(verdicts: list[Verdict], what: str) -> Verdict:
    return next(verdict for verdict in verdicts if verdict.what.startswith(what))


def test_every_row_has_its_numbers_and_its_mark() -> None:
    assert set(names()) == {"alibi", "length-generalization", "randomised", "context-extension", "addition"}
    for name in names():
        assert paper(name).source
        for row in rows(name):
            assert row.mark in ("R", "T")
            assert row.numbers
            assert set(row.before) in (set(), set(row.numbers))
    table = {row.what: row for row in rows("length-generalization")}
    assert table["SCAN by length"].numbers == {"none": 0.531, "t5": 0.266, "alibi": 0.0, "rope": 0.0, "absolute": 0.043}
    assert table["SCAN by length"].mark == "R"
    assert {row.mark for row in rows("alibi")} == {"T"}
    longest = next(row for row in rows("alibi") if row.length == 15512)
    assert "t5" not in longest.numbers  # the paper has no number there


def test_names_are_met_half_way() -> None:
    assert paper("randomized") is paper("randomised")
    assert paper("length-generalisation") is paper("length-generalization")
    with pytest.raises(BadInput, match="Did you mean 'alibi'"):
        paper("alibbi")


@pytest.mark.parametrize(
    ("asked", "task", "same"),
    [
        ("copy", "copy", True),
        ("copy", "copy(tokens=10)", True),
        ("copy", 'copy(kind="one")', False),
        ("copy(kind=one)", "copy(kind='one', tokens=9)", True),
        ("copy(times=2)", "copy", False),
        ("addition(order=reversed,hints=*)", 'addition(order="reversed", hints=10)', True),
        ("addition(order=reversed,hints=*)", 'addition(order="reversed")', False),
        ("reverse", "copy", False),
    ],
)
def test_a_row_finds_its_task(asked: str, task: str, same: bool) -> None:
    assert same_task(asked, task) is same


def test_results_like_the_papers_say_the_same() -> None:
    found = of(beyond(COPY_ONE), "copy one repeated token")
    assert found.word == "same ordering, same size of effect"
    assert found.mark == "R"
    assert found.theirs == pytest.approx(0.986)
    assert {one.entry: one.theirs for one in found.beside}["absolute"] == 0.0
    ours = {one.entry: one.ours for one in found.beside}["t5"]
    assert ours is not None
    assert ours.value == pytest.approx(0.771, abs=0.03)


def test_a_smaller_effect_is_called_smaller() -> None:
    half = {name: 0.3 + share / 3 for name, share in COPY_ONE.items()}
    assert of(beyond(half), "copy one").word == "same ordering, smaller effect"


def test_the_contrary_is_called_so() -> None:
    turned = {name: 1 - share for name, share in COPY_ONE.items()}
    found = of(beyond(turned), "copy one")
    assert found.word == "not the same ordering, the opposite effect"
    assert "rope over none" in found.why


def test_what_seeds_cannot_tell_is_not_told() -> None:
    same = dict.fromkeys(COPY_ONE, 0.5)
    assert of(beyond(same, rows=50), "copy one").word == "not distinguishable"


def test_rows_without_runs_are_not_measured() -> None:
    verdicts = beyond(COPY_ONE)
    assert of(verdicts, "reverse").word == "not measured"
    assert [v.word for v in compare_with("alibi", experiment(COPY_ONE_SKILLS), 20)] == ["not measured"] * len(
        rows("alibi")
    )
    assert of(beyond({"none": 0.9}), "copy one").word == "not measured"


COPY_ONE_SKILLS = {name: (lambda n, share=share: share) for name, share in COPY_ONE.items()}


def test_ranks_are_those_of_the_papers_entries_alone() -> None:
    """Something that is not in the paper takes no place there."""
    found = of(beyond({**COPY_ONE, "fire": 1.0}), "mean reciprocal rank")
    ours = {one.entry: one.ours for one in found.beside}
    assert ours["none"] is not None
    assert ours["none"].value == 1.0
    assert found.mark == "T"


def test_perplexity_is_compared_at_the_same_multiple_of_the_training_length() -> None:
    """Ours: trained to 20; the paper's 512 to 3512 is 20 to 137."""
    theirs = {"sinusoidal": (20.05, 178.97), "rope": (20.07, 35.54), "t5": (19.65, 22.91), "alibi": (19.73, 18.40)}
    losses = {name: (lambda n, e=e: math.log(e[0] if n <= 20 else e[1])) for name, e in theirs.items()}
    results = experiment(losses, tasks=("text",), losses=True, lengths=(20, 140, 5000))
    verdicts = compare_with("alibi", results, 20)
    far = of(verdicts, "trained at 512, read at 3512")
    assert far.word == "same ordering, same size of effect"
    assert "length 140" in far.what
    assert {one.entry: one.theirs for one in far.beside}["rope"] == 35.54
    rope = {one.entry: one.ours for one in far.beside}["rope"]
    assert rope is not None
    assert rope.value == pytest.approx(35.54, rel=0.02)
    assert of(verdicts, "sinusoidal from 512").word == "same shape, same size of effect"
    assert of(verdicts, "alibi from 512").word == "same shape"
    assert of(verdicts, "trained at 512, read at 1012").word == "not measured"  # nothing near twice the length


def test_an_encoding_that_should_hold_and_grows_has_another_shape() -> None:
    losses = {"alibi": lambda n: 3.0 if n <= 20 else 4.0}
    verdicts = compare_with("alibi", experiment(losses, tasks=("text",), losses=True, lengths=(20, 140)), 20)
    assert of(verdicts, "alibi from 512").word == "another shape"


@pytest.mark.parametrize(
    ("gain", "word"),
    [(0.12, "a gain too, same size of effect"), (0.4, "a gain too, larger effect"), (-0.2, "the opposite effect")],
)
def test_what_randomised_positions_gain(gain: float, word: str) -> None:
    skills = {"rope": lambda n: 0.5, "randomised-rope": lambda n: 0.5 + gain, "alibi": lambda n: 0.9}
    found = compare_with("randomized", experiment(skills, tasks=("parity", "reverse")), 20)
    assert [v.word for v in found] == [word]
    assert "2 pairs" in found[0].why


def test_the_best_run_is_set_beside_the_best_run() -> None:
    skills = {"randomised-fire": lambda n: 1.0}
    results = experiment(
        skills, tasks=("addition-hints",), lengths=(40, 100), scatter=0.0, diverged=[("randomised-fire", 2)]
    )
    found = compare_with("addition", results, 40)
    assert found[0].word == "as good a run"
    assert "our worst has 0.000" in found[0].why


def test_the_table_is_read_from_the_package() -> None:
    assert published.paper("alibi").rows[0].numbers["sinusoidal"] == 20.05
