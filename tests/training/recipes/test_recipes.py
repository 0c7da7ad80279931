"""The recipes: that each is read, and that each reaches what its first line says."""

from __future__ import annotations

import gzip
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest

from vantage.errors import BadInput
from vantage.training import Trained, read_settings, recipes, train
from vantage.training.models import DataFacts, learner_of
from vantage.training.promises import promise_of
from vantage.training.sources import TaskExamples

NEED_FILES = {
    "shakespeare": ("data.files",),
    "translate": ("data.source", "data.target", "data.valid_source", "data.valid_target"),
}
QUICKEST = "copy"
OTHERS = ("sort", "case", "ordering")


def promised(name: str) -> tuple[str, ...]:
    """The changes with which a recipe says that it reaches the same."""
    promise = promise_of(name)
    assert promise is not None
    return promise.holds


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[str]]:
    """For each recipe that needs files, the changes that give it some."""
    text, packed = tmp_path / "text.txt", tmp_path / "text.gz"
    text.write_text("a line\nand another\n")
    packed.write_bytes(gzip.compress(text.read_bytes()))
    found = {name: [f"{key}={packed}" for key in keys] for name, keys in NEED_FILES.items()}
    return found | {"shakespeare": [f"data.files={text}"]}


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_says_what_it_shows_and_is_read(name: str, files: dict[str, list[str]]) -> None:
    first = recipes()[name].read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")
    settings, said = read_settings(name, files.get(name, []))
    settings.model.check(DataFacts(vocab=100, seed=0))
    assert said["model"]["is"]


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in NEED_FILES.items() for key in keys])
def test_a_recipe_without_its_files_says_how_to_give_them(name: str, key: str, files: dict[str, list[str]]) -> None:
    given = [change for change in files[name] if not change.startswith(f"{key}=")]
    with pytest.raises(BadInput, match=rf"{key}: there is no file .*{key}=FILE"):
        read_settings(name, [*given, f"{key}=not/there"])


def test_a_recipe_of_a_task_is_scored_at_its_longest_training_length_first() -> None:
    """The goal watches the first set: what ends a run early must be the hardest that was trained."""
    for name in (QUICKEST, *OTHERS):
        settings, _ = read_settings(name)
        assert isinstance(settings.data, TaskExamples)
        assert settings.data.test_lengths[0] == max(settings.data.test_lengths) == settings.data.lengths[1]
        assert settings.evaluate.watch is None
        assert (settings.evaluate.goal or 0) >= 0.99


def test_the_two_recurrent_recipes_differ_in_attention_and_have_as_many_parameters() -> None:
    """A1 compares them: whatever else differed could be the reason."""
    without, with_attention = (read_settings(name)[0] for name in ("case-rnn", "case-rnn-attention"))
    sizes = [
        sum(p.numel() for p in learner_of(made.model, DataFacts(vocab=59, seed=0)).parameters())
        for made in (without, with_attention)
    ]
    assert abs(sizes[0] / sizes[1] - 1) < 0.01
    assert replace(without, model=with_attention.model) == with_attention


@pytest.mark.slow
def test_the_quickest_recipe_reaches_its_goal(tmp_path: Path) -> None:
    check_exact(learn(QUICKEST, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_recipe_reaches_its_goal(name: str, tmp_path: Path) -> None:
    trained = learn(name, tmp_path)
    if name != "ordering":
        check_exact(trained)
    for score in trained.scores if name == "ordering" else ():
        far = {group: share for group, share in score.groups.items() if group != "swap 1"}
        assert min(far.values()) > 0.99, score
        assert score.groups["swap 1"] > 0.9, score  # neighbours are the hard ones


@pytest.mark.slow
def test_without_position_and_mask_ordering_is_a_coin_toss(tmp_path: Path) -> None:
    """And it is the position that is missing: with one, the same model learns it in the same number of steps."""
    blind = learn("ordering-control", tmp_path / "none")
    for score in blind.scores:
        assert 4.5 * sqrt(0.25 / score.rows) < 0.03, "too few examples to tell 50 % from 53 %"
        assert abs(score.exact - 0.5) < 0.03, score
    ordering, _ = read_settings("ordering")
    assert blind.step >= ordering.loop.steps
    seeing = learn("ordering-control", tmp_path / "rope", "model.position=rope")
    assert seeing.scores[0].exact > 0.9


def learn(name: str, folder: Path, *changes: str) -> Trained:
    trained = train(name, [*changes, "loop.threads=1"], out=folder / "run", device="cpu")
    assert trained.finished
    assert trained.kept is not None
    return trained


def check_exact(trained: Trained) -> None:
    assert trained.scores
    for score in trained.scores:
        assert score.exact > 0.99, score


HELD = [(name, "seed=1" if held == "seed" else held) for name in (QUICKEST, *OTHERS) for held in promised(name)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change"), HELD)
def test_a_recipe_reaches_its_goal_with_the_changes_that_it_names(name: str, change: str, tmp_path: Path) -> None:
    check_exact(learn(name, tmp_path, change))
