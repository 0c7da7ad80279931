"""Intervals that cover what they say they cover, and corrections worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compare.synthetic import experiment, falls
from vantage.compare import statistics
from vantage.compare.result_table import ResultTable
from vantage.compare.results import Key, RunResult
from vantage.compare.statistics import (
    Sample,
    average,
    binomial_interval,
    difference,
    estimate,
    fisher,
    holm,
    mean_reciprocal_rank,
    p_value,
    reciprocal_ranks,
    row_noise,
    student_quantile,
    student_within,
)
from vantage.compare.verdicts import comparisons, controls, rank_entries
from vantage.errors import BadInput


def sample(*values: float, noise: float = 0.0) -> Sample:
    return Sample(tuple(range(len(values))), values, (noise,) * len(values))


# ------------------------------------------------------------------------------------- Student and the binomial


@pytest.mark.parametrize("t", [0.1, 1.0, 4.3, 30.0])
def test_student_is_its_closed_forms(t: float) -> None:
    assert student_within(t, 1) == pytest.approx(2 / math.pi * math.atan(t))
    assert student_within(t, 2) == pytest.approx(t / math.sqrt(2 + t * t))
    x = t / math.sqrt(3)
    assert student_within(t, 3) == pytest.approx(2 / math.pi * (x / (1 + x * x) + math.atan(x)))
    assert student_within(t, 4) == pytest.approx(t * (t * t + 6) / (t * t + 4) ** 1.5)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423)])
def test_student_quantiles_are_those_of_the_tables(freedom: int, t: float) -> None:
    assert student_quantile(0.95, freedom) == pytest.approx(t, abs=1e-4)


def test_binomial_intervals_by_hand() -> None:
    assert binomial_interval(0, 20) == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
    assert binomial_interval(20, 20) == pytest.approx((0.025 ** (1 / 20), 1))
    assert binomial_interval(5, 10) == pytest.approx((0.1871, 0.8129), abs=1e-4)
    low, high = binomial_interval(4.5, 10)
    assert (low, high) == (binomial_interval(4, 10)[0], binomial_interval(5, 10)[1])


def test_binomial_intervals_cover_at_every_share() -> None:
    n = 20
    ends = [binomial_interval(k, n) for k in range(n + 1)]
    for p in np.linspace(0.01, 0.99, 50):
        mass = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k, (lo, hi) in enumerate(ends) if lo <= p <= hi)
        assert mass >= 0.95


@pytest.mark.parametrize(("right", "rows"), [(3, 2), (-1, 5), (0, 0)])
def test_binomial_refuses_what_cannot_be(right: int, rows: int) -> None:
    with pytest.raises(BadInput, match="rows"):
        binomial_interval(right, rows)


# ---------------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_an_interval_covers_the_truth_in_95_of_100_experiments(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    experiments = 600
    held = sum(estimate(sample(*rng.normal(0.3, 0.1, seeds).tolist())).holds(0.3) for _ in range(experiments))
    assert 0.92 <= held / experiments <= 0.98  # three standard deviations of the count itself


def test_a_plain_bootstrap_of_three_seeds_would_not() -> None:
    """It never leaves the range of the three, which misses the truth in a quarter of all experiments."""
    rng = np.random.default_rng(0)
    draws = rng.normal(0, 1, (2000, 3))
    inside = ((draws.min(1) < 0) & (draws.max(1) > 0)).mean()
    assert inside == pytest.approx(0.75, abs=0.04)
    wide = estimate(sample(0.2, 0.5, 0.8))
    assert wide.low < 0.2 < 0.8 < wide.high


def test_rows_keep_an_interval_open_where_seeds_agree() -> None:
    agreed = Sample((0, 1, 2), (1.0, 1.0, 1.0), (statistics.row_noise(1.0, 100),) * 3, 100, (0.0, 1.0))
    found = estimate(agreed)
    assert found.high == 1.0
    assert 0.97 < found.low < 1.0
    assert estimate(sample(0.5, 0.5, 0.5)).low == 0.5  # and nothing else does


def test_seeds_that_scatter_more_than_rows_already_hold_the_noise_of_the_rows() -> None:
    values = (0.2, 0.5, 0.8)
    assert estimate(sample(*values, noise=0.02)) == estimate(sample(*values))


def test_one_seed_has_the_interval_of_its_rows_or_none() -> None:
    rows = Sample((0,), (0.9,), (0.03,), 100, (0.0, 1.0))
    assert (estimate(rows).low, estimate(rows).high) == binomial_interval(90, 100)
    assert "rows of one seed" in estimate(rows).method
    loss = estimate(sample(3.2))
    assert (loss.low, loss.high) == (-math.inf, math.inf)
    assert p_value(sample(3.2)) == 1.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(-2, 2), st.floats(0.1, 5))
def test_intervals_move_and_stretch_with_the_numbers(values: list[float], shift: float, factor: float) -> None:
    here, there = estimate(sample(*values)), estimate(sample(*(shift + factor * value for value in values)))
    assert here.low <= here.value <= here.high
    assert there.low == pytest.approx(shift + factor * here.low, abs=1e-9)
    assert there.high == pytest.approx(shift + factor * here.high, abs=1e-9)


def test_the_same_numbers_give_the_same_interval_when_drawn_anew() -> None:
    first = estimate(sample(0.1, 0.4, 0.5, noise=0.3))
    statistics.estimate.cache_clear()
    statistics._draws.cache_clear()
    statistics._normal.cache_clear()
    assert estimate(sample(0.1, 0.4, 0.5, noise=0.3)) == first


# ------------------------------------------------------------------------------------------------- comparisons


def test_pairs_tell_apart_what_means_do_not() -> None:
    """Seeds differ by far more than the two entries do, and by the same for both."""
    a, b = sample(0.31, 0.55, 0.92), sample(0.30, 0.53, 0.91)
    paired = difference(a, b)
    assert paired is not None
    assert estimate(paired).low > 0
    assert estimate(a).holds(b.mean)
    assert estimate(b).holds(a.mean)


def test_a_difference_takes_the_seeds_that_both_have() -> None:
    a, b = Sample((0, 1, 2), (1.0, 2.0, 3.0), (0, 0, 0)), Sample((2, 1, 5), (10.0, 20.0, 0.0), (0, 0, 0))
    found = difference(a, b)
    assert found is not None
    assert dict(zip(found.seeds, found.values, strict=True)) == {1: -18.0, 2: -7.0}
    assert difference(a, Sample((7,), (1.0,), (0.0,))) is None
    mean = average([a, b])
    assert mean is not None
    assert dict(zip(mean.seeds, mean.values, strict=True)) == {1: 11.0, 2: 6.5}


def test_p_is_students_for_seeds_that_scatter() -> None:
    values = (0.1, 0.2, 0.3)
    t = 0.2 / (0.1 / math.sqrt(3))
    assert p_value(sample(*values)) == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert p_value(sample(*values, noise=1.0)) > 0.7  # the rows say less, and they decide


def test_fishers_test_by_hand() -> None:
    assert fisher(2, 2, 0, 2) == pytest.approx(1 / 3)
    assert fisher(3, 4, 1, 4) == pytest.approx(0.4857, abs=1e-4)  # the lady and her tea, two-sided
    assert fisher(1, 10, 11, 14) == pytest.approx(0.0027594561852200836)  # as R has it
    assert fisher(5, 9, 5, 9) == pytest.approx(1.0)


@pytest.mark.parametrize("rows", [2, 4, 16])
def test_one_seed_of_few_rows_is_rarely_told_apart_from_its_equal(rows: int) -> None:
    rng, wrong, experiments = np.random.default_rng(0), 0, 500
    for _ in range(experiments):
        a, b = (
            Sample((0,), (share,), (row_noise(share, rows),), rows, (0, 1))
            for share in rng.binomial(rows, 0.5, 2) / rows
        )
        apart = difference(a, b)
        assert apart is not None
        wrong += p_value(apart) < 0.05
    assert wrong / experiments <= 0.05


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_equal_entries_are_rarely_told_apart() -> None:
    """With 6 entries there are 15 pairs; without a correction most experiments would find a difference."""
    experiments, wrong, uncorrected = 60, 0, 0
    for n in range(experiments):
        rng = np.random.default_rng(n)
        results = []
        for run in experiment({name: lambda length: 0.85 for name in "abcdef"}, lengths=(20, 40), rows=200):
            share = float(np.clip(rng.normal(0.85, 0.05), 0, 1))
            scores = tuple(type(s)(s.length, share, share, 1.0, s.rows) for s in run.scores)
            results.append(RunResult(run.key, 1e-3, 1, 1, 1.0, 1.0, False, scores))
        pairs = comparisons(ResultTable(tuple(results), 20), "ordering")
        wrong += any(pair.distinguishable for pair in pairs)
        uncorrected += any(pair.p <= 0.05 for pair in pairs)
    assert wrong / experiments <= 0.10
    assert uncorrected / experiments > 0.25


def test_large_differences_are_told_apart_with_three_seeds() -> None:
    view = ResultTable(tuple(experiment({"none": falls(300), "rope": falls(20), "alibi": falls(290)})), 20)
    found = {frozenset((pair.better, pair.worse)): pair.word for pair in comparisons(view, "ordering")}
    assert found[frozenset(("none", "rope"))] == "better"
    assert found[frozenset(("none", "alibi"))] == "not distinguishable"
    placed = rank_entries(view, "ordering")
    assert [place.word for place in placed] == ["best mean", "not distinguishable from the best", "behind the best"]
    assert placed[2].entry == "rope"


# -------------------------------------------------------------------------------------------------------- ranks


def test_reciprocal_ranks_by_hand() -> None:
    assert reciprocal_ranks(np.array([0.2, 0.9, 0.5])) == pytest.approx([1 / 3, 1, 1 / 2])
    tied = reciprocal_ranks(np.array([0.9, 0.9, 0.1, 0.1, 0.1]))
    assert tied == pytest.approx([0.75, 0.75, *[(1 / 3 + 1 / 4 + 1 / 5) / 3] * 3])
    assert tied.sum() == pytest.approx(sum(1 / n for n in range(1, 6)))


def test_mean_reciprocal_rank_by_hand() -> None:
    tasks = [
        {"a": sample(0.9, 0.9), "b": sample(0.5, 0.5), "c": sample(0.1, 0.1)},
        {"a": sample(0.2, 0.2), "b": sample(0.5, 0.5)},
    ]
    found = mean_reciprocal_rank(tasks)
    assert found["a"].value == pytest.approx((1 + 1 / 2) / 2)
    assert found["b"].value == pytest.approx((1 / 2 + 1) / 2)
    assert found["c"].value == pytest.approx(1 / 3)
    assert (found["a"].low, found["a"].high) == (0.5, 1.0)  # drawing tasks anew can draw the same one twice
    assert mean_reciprocal_rank([]) == {}


def test_the_interval_of_a_rank_opens_with_the_scatter_of_the_seeds() -> None:
    sure = mean_reciprocal_rank([{"a": sample(0.9, 0.9, 0.9), "b": sample(0.5, 0.5, 0.5)}])["a"]
    unsure = mean_reciprocal_rank([{"a": sample(0.9, 0.6, 0.3), "b": sample(0.4, 0.5, 0.6)}])["a"]
    assert (sure.low, sure.high) == (1.0, 1.0)
    assert (unsure.low, unsure.high) == (0.5, 1.0)


# ------------------------------------------------------------------------------------------- diverged, controls


def test_a_run_that_diverged_counts_as_none_right() -> None:
    view = ResultTable(tuple(experiment({"rope": lambda n: 0.9}, diverged=[("rope", 1)], scatter=0.0)), 20)
    found = view.sample("ordering", "rope", "beyond")
    assert found is not None
    assert found.values[1] == 0.0
    assert found.mean == pytest.approx(0.6, abs=0.02)
    assert view.diverged("ordering", "rope") == 1


def test_the_loss_of_a_run_that_diverged_is_the_worst_of_its_task() -> None:
    runs = experiment(
        {"rope": lambda n: 3.0, "t5": lambda n: 5.0}, tasks=("text",), losses=True, diverged=[("rope", 0)]
    )
    view = ResultTable(tuple(runs), 20)
    found = view.sample("text", "rope", [40])
    assert found is not None
    assert found.values[0] == max(s.loss for run in runs if (s := run.at(40)))
    shown = view.estimate("text", "t5", [40])
    assert shown is not None
    assert shown.value == pytest.approx(math.exp(5), rel=0.05)


def test_a_run_without_a_length_is_left_out_and_an_unknown_entry_is_none() -> None:
    results = experiment({"rope": lambda n: 0.9})
    short = RunResult(Key("ordering", "rope", "multi-head", 9), 1e-3, 1, 1, 1.0, 1.0, False, results[0].scores[:2])
    view = ResultTable((*results, short), 20)
    found = view.sample("ordering", "rope", "beyond")
    assert found is not None
    assert found.seeds == (0, 1, 2)
    assert view.sample("ordering", "xpos", "beyond") is None
    with pytest.raises(BadInput, match="exact, tokens, loss"):
        ResultTable((), 20, {"ordering": "f1"})


def test_a_control_must_stay_at_chance() -> None:
    fine, not_fine = ({"none-bidirectional": lambda n, share=share: share} for share in (0.5, 0.8))
    assert [v.word for v in controls(ResultTable(tuple(experiment(fine)), 20))] == ["holds"]
    above = controls(ResultTable(tuple(experiment(not_fine)), 20))
    assert above[0].word == "does not hold"
    assert "above chance (0.5)" in above[0].why
    assert controls(ResultTable(tuple(experiment(fine, tasks=("copy",))), 20))[0].word == "not measured"
    few = controls(
        ResultTable(tuple(experiment(fine, seeds=2, scatter=0.2, rows=8)), 20)
    )  # as wide as can be: it shows nothing
    assert few[0].word == "not distinguishable"
    assert rank_entries(ResultTable(tuple(experiment(fine)), 20), "ordering") == []
