"""What is drawn evenly is even, and what must not give the answer away does not.

The seeds are fixed, so nothing here is left to luck at run time. A chi-square statistic is turned into a standard
normal one (Wilson and Hilferty 1931); above four, which luck gives three times in 100,000, is uneven.
"""

from collections import Counter, defaultdict

import pytest

from vantage.training.batch import random
from vantage.training.tasks import task

DRAWN = 3000


def drawn(found, length, count=DRAWN):
    return [found.sample(random(11, index), length) for index in range(count)]


def uneven(counts, expected):
    """How many standard deviations the counts are from what is expected, by chi-square."""
    statistic = sum((counts.get(key, 0) - wanted) ** 2 / wanted for key, wanted in expected.items())
    assert set(counts) <= set(expected)
    freedom = len(expected) - 1
    return ((statistic / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / (2 / (9 * freedom)) ** 0.5


def even(values, among):
    values, among = list(values), list(among)
    return uneven(Counter(values), dict.fromkeys(among, len(values) / len(among))) < 4


def test_the_measure_sees_what_is_uneven():
    assert even([0, 1] * 1500, [0, 1])
    assert even([0] * 1550 + [1] * 1450, [0, 1])
    assert not even([0] * 1620 + [1] * 1380, [0, 1])
    assert not even([*range(10), *range(9)] * 300, range(10))


@pytest.mark.sampled
@pytest.mark.parametrize("length", [2, 9, 40])
@pytest.mark.parametrize(
    ("name", "parameters", "answers"),
    [
        ("ordering", {}, ["yes", "no"]),
        ("ordering", {"values": 200, "spread": 3}, ["yes", "no"]),
        ("parity", {}, ["0", "1"]),
        ("summation", {}, list("0123456789")),
        ("even-pairs", {}, ["yes", "no"]),
        ("missing-duplicate", {}, ["a", "b"]),
        ("missing-duplicate", {"tokens": 3}, ["a", "b", "c"]),
        ("lookup", {"values": 7}, [f"v{i}" for i in range(7)]),
    ],
)
def test_answers_are_even(name, parameters, answers, length):
    found = task(name, **parameters)
    assert even((found.symbols[example.answer[0]] for example in drawn(found, length)), answers)


def test_answers_of_cycle_navigation_become_even():
    found = task("cycle-navigation")
    assert even((example.answer[0] for example in drawn(found, 40)), range(3, 8))
    assert {example.answer[0] - 3 for example in drawn(found, 1, 200)} == {0, 1, 4}


def test_how_common_zero_is_in_modular_arithmetic():
    """What its docstring says about chance."""

    def share(length, brackets):
        examples = drawn(task("modular-arithmetic", brackets=brackets), length, 2000)
        return sum(example.answer == (0,) for example in examples) / 2000

    assert share(3, brackets=False) == pytest.approx(0.25, abs=0.03)
    assert share(40, brackets=False) == pytest.approx(0.2, abs=0.03)
    assert share(40, brackets=True) == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize(
    ("name", "parameters", "length", "many"),
    [
        ("copy", {"tokens": 3}, 3, 27),
        ("copy", {"tokens": 7, "kind": "one"}, 4, 7),
        ("copy", {"tokens": 4, "kind": "replace"}, 2, 12),
        ("reverse", {"tokens": 3}, 3, 27),
        ("sort", {"values": 5}, 2, 25),
        ("bucket-sort", {"tokens": 5}, 2, 25),
        ("parity", {}, 5, 32),
        ("summation", {"modulus": 3}, 3, 27),
        ("even-pairs", {}, 4, 16),
        ("duplicate-string", {}, 4, 16),
        ("odds-first", {}, 4, 16),
        ("cycle-navigation", {}, 3, 27),
        ("missing-duplicate", {}, 2, 16),  # four strings, four gaps
        ("modular-arithmetic", {"modulus": 2}, 3, 72),
        ("modular-arithmetic", {"modulus": 2, "brackets": True}, 3, 144),
        ("addition", {}, 1, 100),
        ("lookup", {"keys": 3, "values": 2}, 2, 48),
        ("scan", {}, 1, 102),
    ],
)
def test_prompts_are_even(name, parameters, length, many):
    found = task(name, **parameters)
    counts = Counter(example.prompt for example in drawn(found, length))
    assert len(counts) == many
    assert uneven(counts, dict.fromkeys(counts, DRAWN / many)) < 4


BAGS = [{"values": 6, "distances": (1, 2)}, {"values": 9, "distances": (1, 2), "spread": 2}]


@pytest.mark.parametrize("parameters", BAGS)
def test_the_numbers_do_not_tell_whether_they_are_in_order(parameters):
    """The bags of an ascending sequence are those of each kind of swap, with the same frequencies."""
    found = task("ordering", **parameters)
    bags = defaultdict(Counter)
    for example in drawn(found, 3, 8000):
        bags[example.group][tuple(sorted(example.prompt))] += 1
    assert set(bags) == {"ascending", "swap 1", "swap 2"}
    all_bags = sum(bags.values(), Counter())
    for counts in bags.values():
        assert uneven(counts, {bag: n * counts.total() / all_bags.total() for bag, n in all_bags.items()}) < 4
    if parameters is BAGS[0]:
        assert len(all_bags) == 20
        assert uneven(all_bags, dict.fromkeys(all_bags, 8000 / 20)) < 4


@pytest.mark.parametrize("length", [5, 20, 60])
def test_each_number_is_as_likely_in_both_classes(length):
    """At lengths where bags cannot be counted: how often each number is there."""
    found = task("ordering")
    seen = {answer: Counter() for answer in (found.values, found.values + 1)}
    for example in drawn(found, length, 1500):
        seen[example.answer[0]].update(example.prompt)
    both = sum(seen.values(), Counter())
    assert set(both) == set(range(found.values))  # every symbol, at every length
    for counts in seen.values():
        assert uneven(counts, {value: n * counts.total() / both.total() for value, n in both.items()}) < 4


def test_swaps_are_of_every_distance_and_everywhere():
    found = task("ordering", distances=(1, 3, 4))
    places = defaultdict(list)
    for example in drawn(found, 6):
        if example.group != "ascending":
            pairs = zip(example.prompt, sorted(example.prompt), strict=True)
            places[example.group].append(next(i for i, (a, b) in enumerate(pairs) if a != b))
    assert even((group for group, found in places.items() for _ in found), ["swap 1", "swap 3", "swap 4"])
    for distance in (1, 3, 4):
        assert even(places[f"swap {distance}"], range(6 - distance))
    assert {example.group for example in drawn(found, 4, 200)} == {"ascending", "swap 1", "swap 3"}


def test_spread_keeps_neighbours_as_far_apart_at_every_length():
    """And without it they come closer as the sequence grows."""

    def gap(found, length):
        ordered = [sorted(example.prompt) for example in drawn(found, length, 600)]
        return sum(row[-1] - row[0] for row in ordered) / (len(ordered) * (length - 1))

    steady = task("ordering", values=400, spread=4)
    assert gap(steady, 10) == pytest.approx(gap(steady, 100), rel=0.1)
    assert gap(task("ordering", values=400), 10) > 8 * gap(task("ordering", values=400), 100)


def test_case_marks_and_capitals_are_even():
    found = task("case", letters=2, longest_word=30)
    examples = drawn(found, 9)
    assert even((example.group for example in examples), ["upper", "lower"])
    assert even((i for example in examples for i in example.prompt[1:] if i != 2), range(3, 7))


@pytest.mark.parametrize("name", ["lookup", "passkey"])
def test_depths_are_even(name):
    found = task(name)
    length = 40 if name == "lookup" else found.shortest + 39  # both: 40 places, ten for each quarter
    groups = [f"depth {low}-{low + 25}%" for low in (0, 25, 50, 75)]
    assert even((example.group for example in drawn(found, length)), groups)


def test_each_needle_is_asked_for_wherever_it_stands():
    found = task("passkey", needles=3, digits=1)
    names = found.symbols
    drawings = Counter()  # in which order the marks stand, and which is asked for
    for example in drawn(found, 20):
        drawings[tuple(names[i] for i in example.prompt if names[i].startswith("<key"))] += 1
    assert len(drawings) == 18
    assert uneven(drawings, dict.fromkeys(drawings, DRAWN / 18)) < 4


def test_needles_stand_and_are_asked_for_in_every_order():
    found = task("multi-needle", needles=3, digits=1)
    names = found.symbols
    drawings = Counter()  # in which order the marks stand, and in which they are asked for
    for example in drawn(found, 20):
        drawings[tuple(names[i] for i in example.prompt if names[i].startswith("<key"))] += 1
    assert len(drawings) == 36
    assert uneven(drawings, dict.fromkeys(drawings, DRAWN / 36)) < 4


def test_a_stack_is_of_every_size():
    found = task("stack")
    sizes = [sum(i < 2 for i in example.prompt) for example in drawn(found, 7)]
    assert even(sizes, range(1, 7))
    actions = [i for example in drawn(found, 7) for i in example.prompt if i >= 2]
    assert even(actions, range(2, 5))


def test_hints_begin_anywhere():
    found = task("addition", order="reversed", hints=9)
    starts = [found.symbols[example.prompt[0]] for example in drawn(found, 4)]
    assert even(starts, [f"<{i}>" for i in range(5)])  # four digits and a carry: 0-4 to 4-8


def test_scan_is_even_among_its_commands_of_a_length():
    found = task("scan", count="actions")
    counts = Counter(example.prompt for example in drawn(found, 1))
    assert uneven(counts, dict.fromkeys(counts, DRAWN / 6)) < 4
    assert len(counts) == 6  # four verbs and two turns
