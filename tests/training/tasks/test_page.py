"""docs/tasks.md says what the generators do: each example of it is made anew, each parameter looked up."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.training.tasks.oracles import ORACLES
from vantage.training.batch import random
from vantage.training.tasks import TASKS, task, words

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"


def rows(heading, cells):
    """The lines of the table under a heading, without its first two."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("| `")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    assert all(len(row) == cells for row in found)
    return found


def called(cell):
    """``copy(times=2)`` as a name and parameters."""
    name, _, given = cell.strip("`").partition("(")
    call = ast.parse(f"name({given}" if given else "name()", mode="eval").body
    return name, {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}


def test_every_task_is_there():
    listed = [(name.strip("`"), what) for name, what, *_ in rows("The tasks", 4)]
    assert listed == [(entry.name, entry.summary) for entry in TASKS.entries()]
    assert {called(cell)[0] for cell, *_ in rows("Examples", 3)} == set(TASKS)


@pytest.mark.parametrize("row", rows("Examples", 3), ids=lambda row: row[0])
def test_examples(row):
    """The first number of seed 0: the page shows what a run with that seed is trained on."""
    name, parameters = called(row[0])
    found = task(name, **parameters)
    example = found.sample(random(0, 0), int(row[1]))
    assert row[2] == f"`{words(found, example)}`"
    assert ORACLES[name](found, [found.symbols[i] for i in example.prompt])[0] == int(row[1])


def test_parameters():
    listed = {name.strip("`"): said for name, said in rows("Parameters", 2)}
    for name, kind in ((entry.name, entry.config) for entry in TASKS.entries()):
        said = re.findall(r"`(\w+)=(.+?)`", listed.pop(name, ""))
        assert {key: ast.literal_eval(value) for key, value in said} == {f.name: f.default for f in fields(kind)}
    assert not listed
