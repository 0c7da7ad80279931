"""What a task refuses, and what it says."""

import pytest

from vantage.errors import BadInput
from vantage.training.batch import random
from vantage.training.tasks import TASKS, Copy, Ordering, check_lengths, task


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("copi", "copy"),
        ("Ordering", "ordering"),
        ("modular_arithmetic", "modular-arithmetic"),
        ("oddsfirst", "odds-first"),
    ],
)
def test_an_unknown_name(name, near):
    with pytest.raises(BadInput, match=f"no task is called '{name}'. Did you mean '{near}'?") as found:
        task(name)
    assert str(found.value).endswith(", ".join(TASKS))


def test_a_name_like_no_other():
    with pytest.raises(BadInput, match=r"no task is called 'zzz'\. There are: case, ordering"):
        task("zzz")


def test_an_unknown_parameter():
    with pytest.raises(
        BadInput, match=r"no parameter of 'copy' is called 'token'\. Did you mean 'tokens'.* kind, tokens, times"
    ):
        task("copy", token=3)
    with pytest.raises(BadInput, match=r"no parameter of 'parity' is called 'bits'\. There are: none"):
        task("parity", bits=3)


def test_objects():
    assert task(Copy(tokens=3)) == task("copy", tokens=3)
    assert task("ordering", distances=[1, 8]) == Ordering(distances=(1, 8))  # as a TOML file has it
    with pytest.raises(BadInput, match=r"has its parameters already, and got tokens besides"):
        task(Copy(), tokens=3)
    with pytest.raises(BadInput, match=r"neither a name nor a task: write Copy\(\.\.\.\)"):
        task(Copy)
    with pytest.raises(BadInput, match="task=3 is neither a name nor a task"):
        task(3)


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("case", {"letters": 27}, "CaseConversion: letters=27 is not a whole number from 1 to 26"),
        ("case", {"longest_word": 0}, "longest_word=0 is not a whole number from 1 on"),
        ("ordering", {"values": 1}, "Ordering: values=1 is not a whole number from 2 on"),
        ("ordering", {"distances": ()}, r"distances=\(\) is not a tuple of distances, as in \(1, 8\)"),
        ("ordering", {"distances": 3}, "distances=3 is not a tuple of distances"),
        ("ordering", {"distances": (0,)}, "distances=0 is not a whole number from 1 to 127"),
        ("ordering", {"distances": (1, 1)}, "has one of them twice"),
        ("ordering", {"values": 10, "distances": (10,)}, "distances=10 is not a whole number from 1 to 9"),
        ("ordering", {"spread": 65}, "spread=65 is not a whole number from 1 to 64"),
        ("copy", {"kind": "two"}, "Copy: kind='two' is none of 'random', 'one', 'replace'"),
        ("copy", {"kind": "replace", "tokens": 1}, "tokens=1 is not a whole number from 2 on"),
        ("copy", {"times": 0}, "times=0"),
        ("copy", {"tokens": 2.0}, "tokens=2.0 is not a whole number"),
        ("reverse", {"tokens": True}, "tokens=True is not a whole number"),
        ("reverse", {"times": 0}, "times=0"),
        ("sort", {"values": 0}, "values=0"),
        ("sort", {"written": "roman"}, "written='roman' is none of 'token', 'digits'"),
        ("addition", {"order": "forward"}, "order='forward' is none of 'plain', 'reversed'"),
        ("addition", {"hints": 1}, "hints=1 is not a whole number from 2 on"),
        ("addition", {"hints": -1}, "hints=-1 is not a whole number from 0 on"),
        ("summation", {"modulus": 1}, "modulus=1"),
        ("modular-arithmetic", {"modulus": 1}, "modulus=1"),
        ("modular-arithmetic", {"brackets": "yes"}, "brackets='yes' is neither true nor false"),
        ("duplicate-string", {"tokens": 0}, "tokens=0"),
        ("missing-duplicate", {"tokens": 1}, "tokens=1 is not a whole number from 2 on"),
        ("odds-first", {"tokens": 0}, "tokens=0"),
        ("bucket-sort", {"tokens": 0}, "tokens=0"),
        ("cycle-navigation", {"places": 1}, "places=1"),
        ("scan", {"count": "words"}, "count='words' is none of 'clauses', 'actions'"),
        ("lookup", {"keys": 0}, "keys=0"),
        ("lookup", {"values": 1}, "values=1"),
        ("passkey", {"digits": 0}, "digits=0"),
        ("passkey", {"needles": 0}, "needles=0"),
        ("multi-needle", {"needles": 1}, "needles=1"),
        ("multi-needle", {"digits": 0}, "digits=0"),
    ],
)
def test_a_bad_parameter(name, parameters, says):
    with pytest.raises(BadInput, match=says):
        task(name, **parameters)


@pytest.mark.parametrize(
    ("name", "parameters", "longest", "says"),
    [
        ("ordering", {}, 128, "the longest is 128. It needs values=129 or more"),
        ("ordering", {"values": 64, "spread": 3}, 21, "the longest is 21. It needs values=66 or more"),
        ("addition", {"hints": 20}, 19, "the longest is 19. It needs hints=21 or more"),
        ("lookup", {"keys": 30}, 30, "the longest is 30. It needs keys=31 or more"),
        ("scan", {"count": "actions"}, 48, 'SCAN takes 49 actions; the nearest lengths are 40 and 48. count="clauses"'),
        ("scan", {"count": "actions"}, 22, "SCAN takes 23 actions; the nearest lengths are 22 and 24"),
    ],
)
def test_a_length_that_is_too_great(name, parameters, longest, says):
    found = task(name, **parameters)
    check_lengths(found, [longest])
    with pytest.raises(BadInput, match=says):
        found.sample(random(0, 0), longest + 1)
