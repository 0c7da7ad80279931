"""Whole numbers rounded up."""

from vantage.spec.rounding import ceil_div, next_power_of_2


def test_how_many_steps_reach_a_number():
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5, 8, -3, -5)] == [0, 1, 1, 2, 2, 0, -1]


def test_the_power_of_two_that_is_not_below():
    assert [next_power_of_2(n) for n in (1, 2, 3, 4, 5, 1023, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 1024, 2048]
