"""Schedules at their corners, and what they refuse."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vantage.errors import BadInput
from vantage.training.optimise import WSD, Constant, Cosine


def test_constant():
    assert [Constant().at(s) for s in (0, 1, 10**9)] == [1.0, 1.0, 1.0]
    assert [Constant(4).at(s) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_corners():
    c = Cosine(total=110, warmup=10, floor=0.1)
    assert [c.at(0), c.at(8), c.at(9), c.at(10)] == pytest.approx([0.1, 0.9, 1.0, 1.0])
    assert [c.at(60), c.at(110), c.at(10**6)] == pytest.approx([0.55, 0.1, 0.1])
    assert c.at(35) == pytest.approx(0.1 + 0.9 * (1 + sqrt(0.5)) / 2)


@pytest.mark.parametrize(("shape", "half"), [("linear", 0.5), ("cosine", 0.5), ("sqrt", 1 - sqrt(0.5))])
def test_wsd_corners(shape, half):
    c = WSD(total=100, warmup=10, decay=0.2, floor=0.1, shape=shape)
    assert [c.at(0), c.at(9), c.at(10), c.at(79), c.at(80)] == pytest.approx([0.1, 1, 1, 1, 1])
    assert c.at(90) == pytest.approx(0.1 + 0.9 * half)
    assert [c.at(100), c.at(10**6)] == pytest.approx([0.1, 0.1])


@given(st.integers(1, 500), st.integers(0, 500), st.floats(0, 1), st.floats(0, 1), st.sampled_from(["linear", "sqrt"]))
def test_factors_rise_then_fall_and_stay_between_the_floor_and_1(total, warmup, floor, decay, shape):
    schedules = []
    if warmup <= total:
        schedules.append(Cosine(total, warmup, floor))
    if warmup <= total - round(decay * total):
        schedules.append(WSD(total, warmup, decay, floor, shape))
    for schedule in schedules:
        values = [schedule.at(s) for s in range(total + 3)]
        assert all(0 < a <= b for a, b in pairwise(values[:warmup]))
        after = values[warmup:]
        assert all(a >= b - 1e-12 for a, b in pairwise(after))
        assert values[-1] == pytest.approx(floor)
        assert max(values) <= 1 + 1e-12


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(-1),
        lambda: Cosine(0),
        lambda: Cosine(10, warmup=11),
        lambda: Cosine(10, floor=1.1),
        lambda: WSD(100, decay=1.1),
        lambda: WSD(100, shape="spiral"),
        lambda: WSD(100, warmup=90, decay=0.2),
    ],
)
def test_what_is_refused(make):
    with pytest.raises(BadInput):
        make()
