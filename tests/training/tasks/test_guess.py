"""What a guess gets, counted in the task itself."""

from __future__ import annotations

import pytest

from vantage.training.tasks import TASKS, task
from vantage.training.tasks.guess import guess_score


def test_by_hand() -> None:
    """A letter of 26 at each of ten places, and then the end of the answer, which everybody knows."""
    copy = guess_score(task("copy"), 10)
    assert copy.tokens == pytest.approx((10 / 26 + 1) / 11, abs=0.02)
    assert copy.exact < 0.002
    parity = guess_score(task("parity"), 10)
    assert parity.exact == 0.5
    assert parity.tokens == pytest.approx((0.5 + 1) / 2, abs=0.02)


def test_the_token_before_is_seen() -> None:
    """Where one token is repeated, all but the first are known by it."""
    assert guess_score(task("copy", kind="one"), 10).tokens == pytest.approx((1 / 26 + 10) / 11, abs=0.01)


def test_a_task_that_says_nothing_is_counted() -> None:
    """0 is the commonest result of such sums, so a fifth would be too little."""
    assert guess_score(task("modular-arithmetic", brackets=True), 20).exact > 0.22
    assert guess_score(task("lookup"), 8).exact == pytest.approx(1 / 32, abs=0.02)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_one(name: str) -> None:
    one = task(name)
    score = guess_score(one, max(one.shortest, 12))
    assert 0 <= score.exact <= score.tokens < 1
