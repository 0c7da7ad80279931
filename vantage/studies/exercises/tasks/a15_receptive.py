"""A15: what a node can see through hard attention."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from vantage.spec.parts import Argmax
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import attend
from vantage.studies.exercises.words import article, whole

TASK = """\
With hard attention each head of a node takes exactly one node of the level below, and the residual adds the
node of the same place. So after one level with one head a node holds at most two input positions.

- Write reach(picks, position). picks is a list with one entry for each level, from the lowest up:
  picks[level][place] is the list of places of the level below that the heads of that node take. Return the set
  of input positions that the node at position of the highest level depends on.
- Write bound(heads, levels): how many input positions that can be at most, when there are enough of them."""

STARTER = """\
# vantage exercise A15: the receptive field of hard attention


def reach(picks, position):
    \"\"\"the set of input positions that the top node at position depends on\"\"\"
    raise NotImplementedError


def bound(heads, levels):
    \"\"\"how many they can be at most\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise A15: the receptive field of hard attention


def reach(picks, position):
    \"\"\"the set of input positions that the top node at position depends on\"\"\"
    seen = {position}
    for level in reversed(picks):
        seen = seen | {source for place in seen for source in level[place]}
    return seen


def bound(heads, levels):
    \"\"\"how many they can be at most\"\"\"
    return (heads + 1) ** levels
"""

WORDS = """\
Going down one level, every node that was seen adds what its heads took, and the residual keeps the node itself:
a set of s places becomes at most (h + 1) s. After n levels that is (h + 1)^n: 2^n with one head, 3^n with two.
Without the residual it would be h^n, and a single head would see one position however deep the stack is."""

Picks = list[list[list[int]]]


def _drawn(heads: int, levels: int, length: int, seed: int) -> Picks:
    dice = random.Random(seed)
    return [[[dice.randrange(length) for _ in range(heads)] for _ in range(length)] for _ in range(levels)]


def _real(picks: Picks, position: int) -> set[int]:
    """Through the real kernel: hard attention over unit vectors, with the residual, and see where something arrives."""
    length = len(picks[0])
    eye = torch.eye(length)
    x = eye
    for level in picks:
        taken = [
            attend(torch.stack([eye[node[h]] for node in level]), eye, x, scale=1.0, normalise=Argmax()).out
            for h in range(len(level[0]))
        ]
        x = x + sum(taken)
    return set(x[position].nonzero().flatten().tolist())


def _without_residual(picks: Picks, position: int) -> set[int]:
    seen = {position}
    for level in reversed(picks):
        seen = {source for place in seen for source in level[place]}
    return seen


def _upwards(picks: Picks, position: int) -> set[int]:
    seen = {position}
    for level in picks:
        seen = seen | {source for place in seen for source in level[place]}
    return seen


def _top_only(picks: Picks, position: int) -> set[int]:
    return {position, *picks[-1][position]}


def _first_head(picks: Picks, position: int) -> set[int]:
    return _real([[[node[0]] for node in level] for level in picks], position)


SLIPS = (
    (
        _without_residual,
        "the residual is missing: the node of the same place is added at every level, so a place that was "
        "seen stays seen",
    ),
    (_top_only, "only the highest level is followed; go on down to the input, level by level"),
    (_upwards, "the levels are taken in the wrong order: picks[0] is the lowest, and the way down starts at the last"),
    (_first_head, "only the first head of each node is followed"),
)


def reaching(ask: Ask) -> str | None:
    for seed, (heads, levels, length) in enumerate(((1, 1, 6), (1, 3, 16), (2, 2, 20), (2, 3, 40), (3, 2, 9))):
        picks = _drawn(heads, levels, length, seed)
        for position in range(0, length, max(1, length // 4)):
            got = ask.call("reach", picks, position)
            if not isinstance(got, frozenset | list | tuple):
                return f"reach returns {article(got)}; return a set of whole numbers"
            wanted = _real(picks, position)
            if set(got) == wanted:
                continue
            words = next((w for make, w in SLIPS if make(picks, position) == set(got)), None)
            return words or (
                f"with {heads} head(s), {levels} level(s) and {length} places, the node at {position} depends on "
                f"{sorted(wanted)}; reach gives {sorted(map(str, got))[:30]}"
            )
    return None


def _widest(heads: int, levels: int) -> int:
    """Measured: the heads of level l look (h + 1)^l, 2 (h + 1)^l, … places back, so that nothing is seen twice."""
    length = (heads + 1) ** levels
    picks = [
        [[(place - k * (heads + 1) ** level) % length for k in range(1, heads + 1)] for place in range(length)]
        for level in range(levels)
    ]
    return len(_real(picks, length - 1))


BOUNDS: tuple[tuple[Callable[[int, int], int], str], ...] = (
    (lambda h, n: h**n, "the residual is missing: each level multiplies by h + 1, the heads and the node itself"),
    (lambda h, n: 2**n, "this is the bound for one head; it grows with the number of heads"),
    (
        lambda h, n: h * n + 1,
        "the heads of every level add up here; each node of a level has heads of its own, so it multiplies",
    ),
    (lambda h, n: (n + 1) ** h, "base and exponent have changed places"),
    (lambda h, n: (h + 1) * n, "it multiplies at each level: a power, not a product"),
    (lambda h, n: (h + 1) ** (n + 1), "this is one level too many: with no level a node sees itself, 1"),
)


def bounding(ask: Ask) -> str | None:
    cases = ((1, 1), (1, 4), (3, 2), (4, 3), (2, 3), (7, 2), (5, 0))
    got = [ask.call("bound", heads, levels) for heads, levels in cases]
    slip = next((words for make, words in BOUNDS if got == [make(*case) for case in cases]), None)
    for (heads, levels), one in zip(cases, got, strict=True):
        wanted = _widest(heads, levels) if levels else 1
        wrong = whole(one, wanted, f"bound({heads}, {levels})")
        if wrong is not None:
            return slip or wrong
    return None


EXERCISE = Exercise(
    tag="A15",
    title="The receptive field of hard attention",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("reach", "bound"),
    checks=(("reach", reaching), ("bound", bounding)),
)
