"""Commands that are to be carried out, after SCAN (Lake and Baroni 2018)."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Literal

import numpy as np

from vantage.errors import BadInput
from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, fits, one_of

VERBS = ("walk", "look", "run", "jump")
SIDES = ("left", "right")
WORDS = (*VERBS, "turn", *SIDES, "opposite", "around", "twice", "thrice", "and", "after")
ACTIONS = ("WALK", "LOOK", "RUN", "JUMP", "LTURN", "RTURN")
SYMBOLS = WORDS + ACTIONS
AND, AFTER = SYMBOLS.index("and"), SYMBOLS.index("after")

Clause = tuple[tuple[int, ...], tuple[int, ...]]  # what is said, what is done


@lru_cache(maxsize=1)
def clauses() -> tuple[Clause, ...]:
    """The 102 commands without a conjunction."""
    simple = {verb: verb.upper() for verb in VERBS}
    for side in SIDES:
        turn = side[0].upper() + "TURN"
        for verb in (*VERBS, "turn"):
            act = "" if verb == "turn" else verb.upper()
            simple[f"{verb} {side}"] = f"{turn} {act}"
            simple[f"{verb} opposite {side}"] = f"{turn} {turn} {act}"
            simple[f"{verb} around {side}"] = f"{turn} {act} " * 4
    times = {"": 1, " twice": 2, " thrice": 3}
    commands = {words + end: (acts + " ") * n for words, acts in simple.items() for end, n in times.items()}
    return tuple((_ids(words), _ids(acts)) for words, acts in commands.items())


def _ids(line: str) -> tuple[int, ...]:
    return tuple(SYMBOLS.index(word) for word in line.split())


@lru_cache(maxsize=1)
def by_actions() -> dict[int, list[tuple[int, ...]]]:
    """The 20,910 commands of SCAN by how many actions they take: clause, or clause, conjunction, clause."""
    by_actions = defaultdict(list)
    counts = [len(actions) for _, actions in clauses()]
    for i, first in enumerate(counts):
        by_actions[first].append((i,))
        for j, second in enumerate(counts):
            by_actions[first + second] += [(i, AND, j), (i, AFTER, j)]
    return dict(by_actions)


@dataclass(frozen=True)
class Scan:
    """``jump twice after walk left`` → ``LTURN WALK JUMP JUMP``.

    ``count="clauses"``: any number of clauses, each one of the 102, joined by ``and`` or ``after``; all is drawn
    evenly. They are taken from the left: ``x and y`` is x, then y; ``x after y`` is y, then x; a third clause goes
    behind or before the whole of the first two. ``count="actions"``: SCAN itself, which joins no more than two,
    evenly among its commands with so many actions. It has none of 23, 29, 31, … actions and none of more than 48; its
    split by length trains on up to 22.

    Length: clauses of the command or actions of the answer, whichever ``count`` says. After Lake and Baroni 2018; by
    length also in Kazemnejad et al. 2023.
    """

    count: Literal["clauses", "actions"] = "clauses"

    def __post_init__(self) -> None:
        one_of(self, "count", self.count, ("clauses", "actions"))

    @property
    def symbols(self) -> tuple[str, ...]:
        return SYMBOLS

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        if self.count == "clauses":
            picks = rng.integers(len(clauses()), size=2 * length - 1).tolist()
            picks[1::2] = [AFTER if after else AND for after in rng.integers(2, size=length - 1).tolist()]
        else:
            commands = by_actions()
            if length not in commands:
                near = sorted(sorted(commands, key=lambda n: abs(n - length))[:2])
                raise BadInput(
                    f"no command of SCAN takes {length} actions; the nearest lengths are {near[0]} and {near[1]}. "
                    'count="clauses" has every length'
                )
            picks = commands[length][rng.integers(len(commands[length]))]
        first, acts = clauses()[picks[0]]
        prompt, answer = list(first), deque([acts])
        for joined, pick in zip(picks[1::2], picks[2::2], strict=True):
            words, acts = clauses()[pick]
            prompt += [joined, *words]
            if joined == AFTER:
                answer.appendleft(acts)
            else:
                answer.append(acts)
        return Example(tuple(prompt), tuple(chain.from_iterable(answer)))


ENTRY = Entry("scan", Scan, summary="commands carried out")
