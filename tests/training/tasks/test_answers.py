"""Prompts and answers are what each task's definition says."""

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tests.training.tasks.oracles import ORACLES, VARIANTS, title
from vantage.errors import BadInput
from vantage.training.batch import random
from vantage.training.tasks import TASKS, Example, Task, check_lengths, task, words
from vantage.training.tasks.scan import by_actions, clauses

LENGTHS = [*range(1, 23), 25, 40]  # each is a number of actions that a command of SCAN has
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=title)


def made(variant):
    name, parameters = variant
    return task(name, **parameters)


def check(name, found, example, length):
    """The oracle reads the same length from the prompt, and comes to the same answer and group."""
    assert all(type(i) is int for i in (*example.prompt, *example.answer))
    assert min((*example.prompt, *example.answer)) >= 0
    symbols = found.symbols
    prompt, answer = [symbols[i] for i in example.prompt], [symbols[i] for i in example.answer]
    assert ORACLES[name](found, prompt) == (length, answer, example.group)


def test_every_task_has_an_oracle():
    assert list(ORACLES) == list(TASKS)
    choices = {(name, key) for name, parameters in VARIANTS for key in parameters}
    assert choices == {(name, field.name) for name in TASKS for field in fields(TASKS[name].config)}


@every_variant
def test_the_oracle_agrees_at_every_length(variant):
    found = made(variant)
    for length in LENGTHS:
        if length >= found.shortest:
            for index in range(8):
                check(variant[0], found, found.sample(random(1, index), length), length)


@settings(max_examples=examples(300))
@given(
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 2**63 - 1),
    index=st.integers(0, 2**63 - 1),
    length=st.integers(1, 64),
)
def test_the_oracle_agrees_anywhere(variant, seed, index, length):
    found = made(variant)
    try:
        example = found.sample(random(seed, index), length)
    except BadInput:
        gap = variant == ("scan", {"count": "actions"}) and length not in by_actions()
        assert gap or length < found.shortest
        return
    check(variant[0], found, example, length)
    assert found.sample(random(seed, index), np.int64(length)) == example
    check(variant[0], found, found.sample(random(seed, index), np.int64(length)), length)


@every_variant
def test_an_example_is_a_function_of_its_number(variant):
    found = made(variant)
    length = max(18, found.shortest)
    examples = [found.sample(random(3, index), length) for index in range(40)]
    assert examples == [found.sample(random(3, index), length) for index in range(40)]
    assert examples != [found.sample(random(4, index), length) for index in range(40)]
    few = variant[1].get("kind") in ("one", "replace")  # a prompt of one token, so there are as many as tokens
    assert len(set(examples)) > (1 if few else 30)


@every_variant
def test_every_symbol_is_used(variant):
    """None is left out, so a vocabulary has no rows that cannot be trained; none is named twice."""
    found = made(variant)
    lengths = [length for length in LENGTHS if length >= found.shortest]
    drawn = [found.sample(random(0, i), lengths[i % len(lengths)]) for i in range(800)]
    assert {i for example in drawn for i in (*example.prompt, *example.answer)} == set(range(len(found.symbols)))
    assert len(set(found.symbols)) == len(found.symbols)


@every_variant
def test_it_is_frozen_data(variant):
    found = made(variant)
    assert isinstance(found, Task)
    assert found == made(variant)
    assert hash(found) == hash(made(variant))
    assert task(found) is found
    with pytest.raises(FrozenInstanceError):
        found.anything = 1


@every_variant
def test_shortest(variant):
    found = made(variant)
    check(variant[0], found, found.sample(random(0, 0), found.shortest), found.shortest)
    check_lengths(found, [found.shortest, 20])
    for length in (found.shortest - 1, 0, -3):
        with pytest.raises(BadInput, match=f"no example of length {length}: the shortest is {found.shortest}"):
            check_lengths(found, [20, length])
    for length in (2.0, True, "3", None):
        with pytest.raises(BadInput, match="is not a whole number"):
            found.sample(random(0, 0), length)


@pytest.mark.parametrize(
    ("name", "parameters", "prompt", "answer"),
    [
        # A1
        ("case", {"longest_word": 7}, "<U>|I| |a|m| |a| |s|t|u|d|e|n|t", "I| |A|M| |A| |S|T|U|D|E|N|T"),
        # the examples in the published code of Delétang et al. 2023
        ("odds-first", {}, "0|0|1|1|0|1|0|1", "0|1|0|0|0|1|1|1"),
        ("stack", {}, "0|1|1|0|<push1>|<pop>|<pop>", "1|1|0|."),
        ("stack", {}, "1|1|0|<pop>|<pop>|<pop>", "."),
        ("missing-duplicate", {}, "0|1|1|0|0|_|1|0", "1"),
        # Lake and Baroni 2018, figure 1
        ("scan", {}, "jump", "JUMP"),
        ("scan", {}, "jump|around|right", "RTURN|JUMP|RTURN|JUMP|RTURN|JUMP|RTURN|JUMP"),
        ("scan", {}, "turn|left|twice", "LTURN|LTURN"),
        ("scan", {}, "jump|thrice", "JUMP|JUMP|JUMP"),
        ("scan", {}, "jump|opposite|left|and|walk|thrice", "LTURN|LTURN|JUMP|WALK|WALK|WALK"),
        (
            "scan",
            {"count": "actions"},
            "jump|opposite|left|after|walk|around|left",
            "LTURN|WALK|LTURN|WALK|LTURN|WALK|LTURN|WALK|LTURN|LTURN|JUMP",
        ),
        # the released data of Kazemnejad et al. 2023
        ("copy", {"kind": "replace"}, "6|>|6|6|6", ">|>|>"),
    ],
)
def test_the_oracles_agree_with_the_papers(name, parameters, prompt, answer):
    assert ORACLES[name](task(name, **parameters), prompt.split("|"))[1] == answer.split("|")


def test_there_are_as_many_commands_as_in_scan():
    assert len(clauses()) == len(set(clauses())) == 102
    commands = by_actions()
    assert sum(map(len, commands.values())) == 20_910
    assert set(range(1, 49)) - set(commands) == {23, 29, 31, 34, 35, 37, 38, 39, *range(41, 48)}
    assert max(commands) == 48


def test_brackets_are_of_every_shape():
    """Four numbers can be bracketed in five ways, and the operator outside all others is any of the three."""
    found = task("modular-arithmetic", brackets=True)
    shapes, outside = set(), [0, 0, 0]
    for index in range(3000):
        prompt = [found.symbols[i] for i in found.sample(random(0, index), 4).prompt]
        shapes.add("".join("x" if s.isdigit() else "o" if s in "+-*" else s for s in prompt))
        level, seen = 0, 0
        for symbol in prompt:
            level += (symbol == "(") - (symbol == ")")
            seen += symbol.isdigit()
            if symbol in "+-*" and level == 1:
                outside[seen - 1] += 1
    assert len(shapes) == 5
    assert sum(outside) == 3000
    assert all(abs(count - 1000) < 120 for count in outside)


def test_words():
    case, ordering = task("case"), task("ordering")
    ids = {symbol: i for i, symbol in enumerate(case.symbols)}
    example = Example((ids["<U>"], *(ids[c] for c in "I am")), tuple(ids[c] for c in "I AM"))
    assert words(case, example) == "<U>I am → I AM"
    assert words(ordering, Example((3, 1, 17), (129,))) == "3 1 17 → no"
