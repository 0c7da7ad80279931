"""The exercises themselves: starters fail, answers pass, whatever the seed; and grading as a user calls it."""

import ast
import re
from dataclasses import replace

import pytest
import torch

from vantage.errors import BadInput
from vantage.studies.exercises import Grade, exercises, grade_many, heat_maps_png, puzzle
from vantage.studies.exercises.grading import grade_in
from vantage.studies.exercises.tasks import a09_heat_maps as a9
from vantage.studies.sandbox import CodeSandbox

ALL = exercises()


@pytest.fixture(scope="module")
def sandbox():
    with CodeSandbox() as sandbox:
        yield sandbox


@pytest.mark.parametrize("tag", ALL)
def test_the_starter_fails_and_the_answer_passes(tag, sandbox):
    exercise = ALL[tag]
    starter, answer = (grade_in(sandbox, exercise, text) for text in (exercise.starter, exercise.answer))
    assert not starter.passed
    assert "not written yet" in starter.checks[1].words or any(
        "fill" in c.words or "?" in c.words for c in starter.checks
    )
    assert answer.passed, answer.checks
    assert [check.name for check in answer.checks] == ["the file runs", *(name for name, _ in exercise.checks)]
    assert all(check.words == "" for check in answer.checks)
    assert answer.output == ""


@pytest.mark.parametrize("tag", ALL)
def test_the_texts(tag):
    exercise = ALL[tag]
    assert exercise.tag == tag
    for text in (exercise.starter, exercise.answer):
        assert text.splitlines()[0].startswith(f"# vantage exercise {tag}: ")
        ast.parse(text)
    for name in exercise.names:
        assert name in exercise.starter
        assert name in exercise.task or exercise.numbers
    assert len(exercise.words) > 200
    assert max(map(len, exercise.task.splitlines())) <= 120
    assert re.fullmatch(r"[APK]\d+(-[a-z]+)?", tag)


@pytest.mark.parametrize(
    "body",
    [
        "    z = x / temperature\n    e = torch.exp(z - z.max(dim=-1, keepdim=True).values)\n"
        "    return e / e.sum(dim=-1, keepdim=True)\n",
        "    return torch.softmax(x / temperature, -1)\n",
        "    z = x / temperature\n    return torch.exp(z - torch.logsumexp(z, -1, keepdim=True))\n",
        "    return torch.softmax(x.double() * (1 / temperature), -1)\n",
    ],
    ids=["divided first", "torch's", "log-sum-exp", "float64"],
)
def test_other_right_answers_to_a10_pass(body, sandbox):
    found = grade_in(sandbox, ALL["A10"], "import torch\ndef softmax(x, temperature):\n" + body)
    assert found.passed, found.checks


def test_exercises_and_grades_show_themselves(sandbox):
    exercise = ALL["P10"]
    shown = exercise._repr_html_()
    assert "P10 ALiBi&#x27;s bias" in shown
    assert "raise NotImplementedError" in shown
    assert exercise.answer.splitlines()[-1].strip() not in shown
    assert "&lt;b&gt;" in replace(exercise, title="<b>", task="", starter="")._repr_html_()
    found = grade_in(
        sandbox, ALL["K1"], "print('<i>hello')\n" + ALL["K1"].answer.replace("return n - t", "return '<b>'")
    )
    shown = found._repr_html_()
    assert "K1: not passed" in shown
    assert "It printed:" in shown
    assert "&lt;i&gt;hello" in shown
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert shown.count("<tr>") == len(found.checks)


def test_there_are_enough_and_each_call_gives_its_own_table():
    assert len(ALL) >= 14
    given = exercises()
    given.clear()
    assert exercises() == ALL


def test_an_answer_says_nothing_that_a_wrong_one_could_learn_from_the_messages(sandbox):
    """What the process is sent holds questions alone: printed from inside, no expected value is among them."""
    code = ALL["K1"].answer.replace(
        "    return n\n", "    import sys; print(sys._getframe(1).f_locals['request'])\n    return n\n"
    )
    found = grade_in(sandbox, ALL["K1"], code)
    assert found.passed
    assert found.output.splitlines()[0] == "{'call': 'with_cache', 'args': [1]}"


def test_grading_as_it_is_called(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(ALL["P10"].answer)
    found = grade_many(
        [path, ALL["P10"].starter, ALL["K5"].answer.partition("\n")[2].join(["# vantage exercise k5\n", ""])]
    )
    assert [type(one) for one in found] == [Grade] * 3
    assert [(one.tag, one.passed) for one in found] == [("P10", True), ("P10", False), ("K5", True)]


# ---- A9: from a seed


@pytest.mark.parametrize("seed", [1, 2, 77, 9999])
def test_a_puzzle_for_each_seed(seed, sandbox):
    made = puzzle(seed)
    assert made.task != puzzle(0).task
    assert grade_in(sandbox, made, made.answer).passed
    assert grade_in(sandbox, ALL["A9"], made.answer).passed  # the file says which seed it is
    assert not grade_in(sandbox, made, made.starter).passed


def test_the_maps_are_row_softmaxes_and_all_different():
    for seed in range(25):
        these = a9.drawn(seed)
        for i, matrix in enumerate(these.matrices):
            torch.testing.assert_close(these.maps[these.order[i]], matrix.double().softmax(-1), atol=1e-12, rtol=0)
        shown = {tuple("".join(a9._shade(v) for v in row) for row in m.tolist()) for m in these.maps}
        assert len(shown) == 5  # different also as they are shown
        assert sorted(these.match) == [1, 2, 3, 4, 5]


def test_seeds_that_there_are_not():
    for seed in (-1, 10_000):
        with pytest.raises(BadInput, match="from 0 to 9999"):
            puzzle(seed)


def test_the_maps_as_a_picture(tmp_path):
    path = heat_maps_png(3, tmp_path / "maps.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    other = heat_maps_png(4, tmp_path / "other.png")
    assert path.read_bytes() != other.read_bytes()
