"""Finding what was said: dictionary look-up and passkey retrieval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, depth, fits, numbers, too_long, whole

# what the numbers are hidden in: the sentences of Mohtashami and Jaggi 2023
FILLER = "the grass is green . the sky is blue . the sun is yellow . here we go . there and back again ."
FILLER_WORDS = tuple(dict.fromkeys(FILLER.split()))
FILLER_IDS = np.array([FILLER_WORDS.index(word) for word in FILLER.split()])

FIRST_DIGIT = len(FILLER_WORDS)  # then come the ten digits, and then the marks of the numbers
FIRST_MARK = FIRST_DIGIT + 10


def needle_symbols(needles: int) -> tuple[str, ...]:
    """Words of the filler, digits, and a mark for each number that is hidden."""
    return (*FILLER_WORDS, *numbers(10), *(f"<key{i}>" for i in range(needles)))


def draw_filler(rng: np.random.Generator, words: int) -> list[int]:
    """So many words of the sentences, which run in a circle and begin anywhere."""
    return FILLER_IDS[(rng.integers(len(FILLER_IDS)) + np.arange(words)) % len(FILLER_IDS)].tolist()


def draw_numbers(rng: np.random.Generator, needles: int, digits: int) -> list[list[int]]:
    return (FIRST_DIGIT + rng.integers(10, size=(needles, digits))).tolist()


def hidden_in(filler: list[int], cuts: list[int], needles: Iterable[list[int]]) -> list[int]:
    """The filler with one needle at each cut."""
    prompt: list[int] = []
    for begin, end, needle in zip([0, *cuts], cuts, needles, strict=False):
        prompt += [*filler[begin:end], *needle]
    return prompt + filler[cuts[-1] :]


@dataclass(frozen=True)
class KeyLookup:
    """``k7 v2 k1 v9 k4 v2 k1`` → ``v9``: pairs of a key and a value, then one of the keys.

    Keys are different within an example and drawn evenly; values are drawn evenly, with repetition. Whoever knows only
    which values were named is right once in ``length``, not once in ``values``: chance falls with the length. Groups:
    "depth 0-25%" to "depth 75-100%", where among the pairs the one that is asked for stands.

    Length: pairs; the prompt has ``2 * length + 1`` symbols. Associative recall: Graves et al. 2014, Ba et al. 2016.
    """

    keys: int = 128
    values: int = 32

    def __post_init__(self) -> None:
        whole(self, "keys", self.keys, 1)
        whole(self, "values", self.values, 2)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*(f"k{i}" for i in range(self.keys)), *(f"v{i}" for i in range(self.values)))

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        if length > self.keys:
            raise too_long(self, length, self.keys, f"It needs keys={length} or more, at the shorter lengths as well")
        prompt = np.empty(2 * length + 1, np.int64)
        prompt[:-1:2] = rng.permutation(self.keys)[:length]
        prompt[1::2] = self.keys + rng.integers(self.values, size=length)
        wanted = int(rng.integers(length))
        prompt[-1] = prompt[2 * wanted]
        return Example(tuple(prompt.tolist()), (int(prompt[2 * wanted + 1]),), depth(wanted, length))


@dataclass(frozen=True)
class Passkey:
    """``the sky is blue . <key0> 4 8 2 1 3 the sun is <key0>`` → ``4 8 2 1 3``.

    A number of random digits behind its mark, hidden in sentences that run in a circle and begin anywhere; the mark
    at the end asks for it. ``needles=n`` hides n numbers with different marks, in any order, and asks for one of them.
    Where they stand is drawn evenly. Groups: "depth 0-25%" to "depth 75-100%", where in the filler the number asked
    for stands.

    Length: symbols of the prompt, all of them; ``needles * (digits + 1) + 1`` are not filler. After Mohtashami and
    Jaggi 2023.
    """

    digits: int = 5
    needles: int = 1

    def __post_init__(self) -> None:
        whole(self, "digits", self.digits, 1)
        whole(self, "needles", self.needles, 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        return needle_symbols(self.needles)

    @property
    def shortest(self) -> int:
        return self.needles * (self.digits + 1) + 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        spare = length - self.shortest
        filler, codes = draw_filler(rng, spare), draw_numbers(rng, self.needles, self.digits)
        marks = (FIRST_MARK + rng.permutation(self.needles)).tolist()
        cuts = sorted(rng.integers(spare + 1, size=self.needles).tolist())
        wanted = int(rng.integers(self.needles))
        needles = ([mark, *code] for mark, code in zip(marks, codes, strict=True))
        prompt = [*hidden_in(filler, cuts, needles), marks[wanted]]
        return Example(tuple(prompt), tuple(codes[wanted]), depth(cuts[wanted], spare + 1))


LOOKUP = Entry("lookup", KeyLookup, summary="the value of a key among pairs")
PASSKEY = Entry("passkey", Passkey, summary="a number hidden in filler, or one of several")
