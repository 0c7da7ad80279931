"""What a recipe reaches, and what its changes leave of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.runs import Notes
from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.training import read_settings, recipes, train
from vantage.training.promises import Promise, promise_note, promise_of

SETTINGS = """\
[promise]
reaches = "half of the rows"
holds = ["seed", "model.position=alibi", "data"]
[model]
is = "decoder"
width = 16
layers = 1
heads = 2
[data]
is = "task"
task = "copy"
lengths = [1, 5]
test_examples = 4
[loop]
steps = 2
batch = 4
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SETTINGS)
    return "mine.toml"


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["seed=3", "model.position=alibi", 'model.position = "alibi"'],
        ["data.lengths=[1, 9]", "data.task={is='copy', tokens=4}"],
        ["save.every=7", "loop.threads=1", "guard.spike=0"],  # nothing of what is learned
        ["loop.steps=2"],  # as it is
    ],
)
def test_what_leaves_a_promise_standing(settings: str, changes: list[str]) -> None:
    read_settings(settings, changes)
    assert promise_note(settings, changes) is None


def test_what_takes_it_away_is_named(settings: str) -> None:
    changes = ["seed=3", "model.position=rope", "loop.batch=8", "seeds=1"]
    assert promise_note(settings, changes) == (
        "model.position=rope, loop.batch=8, seeds=1: mine.toml may not reach half of the rows; that was measured as it "
        "is, and with seed=…, model.position=alibi, data=…"
    )


def test_a_run_says_so_in_one_line(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", settings, "--out", "a", "model.position=rope"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert sum("may not reach half of the rows" in line for line in said) == 1
    assert main(["train", settings, "--out", "b", "model.position=alibi"]) == 0
    assert "may not reach" not in capsys.readouterr().err
    assert main(["train", settings, "--check", "loop.batch=8"]) == 0
    assert "loop.batch=8: mine.toml may not reach half of the rows" in capsys.readouterr().err
    notes = Notes()
    train(settings, ["loop.batch=8"], out="c", report=notes)
    assert [note for note in notes.notes if note.startswith("loop.batch=8: mine.toml may not reach")]


@pytest.mark.parametrize(
    "section",
    ["promise = 3", "[promise]\nreaches = 3", "[promise]\nreach = 'x'", "[promise]\nreaches = 'x'\nholds = [1]"],
)
def test_a_promise_that_cannot_be_read(settings: str, section: str) -> None:
    Path(settings).write_text(section + "\n" + SETTINGS.split("]\n", 2)[2])
    with pytest.raises(BadInput, match=r"\[promise\] has reaches, a sentence, and holds"):
        promise_of(settings)


def test_the_list_says_what_recipes_reach_and_with_which_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "--list"]) == 0
    said = capsys.readouterr().out
    promised = {name: promise for name in recipes() if (promise := promise_of(name)) is not None}
    assert {"copy", "sort", "case", "ordering"} <= promised.keys()
    for promise in promised.values():
        assert all(held in said for held in promise.holds)


def test_what_a_recipe_holds_with_can_be_said() -> None:
    """Every change that a recipe names is one of its settings."""
    for name in recipes():
        promise = promise_of(name) or Promise("")
        for held in promise.holds:
            if "=" in held:
                files = [f"data.files={__file__}"] if "data.files" in promise.holds else []
                read_settings(name, [held, *files])


def test_the_readme_keeps_the_promise() -> None:
    """The README's own example of a changed recipe reaches what the recipe says."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    lines = [line.split() for line in readme.splitlines() if line.startswith("vantage train copy model.")]
    assert lines
    for words in lines:
        changes = [word for word in words[3:] if "=" in word and not word.startswith("--")]
        assert promise_note(words[2], changes) is None
