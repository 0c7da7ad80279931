"""Case conversion, character by character (source A1)."""

from __future__ import annotations

import string
from dataclasses import dataclass

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, fits, whole

TEXT = 3  # ids before the letters: <U>, <L>, space


@dataclass(frozen=True)
class CaseConversion:
    """``<U> I am`` → ``I AM``, ``<L> I am`` → ``i am``.

    The text is words of random letters, each a capital as often as not, with single spaces between: there is nothing
    to know but the characters, so the length alone makes it hard. Words have up to ``longest_word`` letters, the last
    of a text up to one more (what would be a space at its end is a letter). Group: "upper" or "lower".

    Length: characters of the text, its spaces counted; the prompt has one symbol more, the mark. From the course
    material on attention in RNN encoder-decoders (A1).
    """

    letters: int = 26
    longest_word: int = 8

    def __post_init__(self) -> None:
        whole(self, "letters", self.letters, 1, 26)
        whole(self, "longest_word", self.longest_word, 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        letters = self.letters
        return ("<U>", "<L>", " ", *string.ascii_lowercase[:letters], *string.ascii_uppercase[:letters])

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        lower = bool(rng.integers(2))
        letter, capital = rng.integers(self.letters, size=length), rng.integers(2, size=length)
        # A space ends each word; none may be the last character. No word is empty, so length / 2 words are enough.
        spaces = np.cumsum(rng.integers(1, self.longest_word + 1, size=length // 2) + 1) - 1
        spaces = spaces[spaces < length - 1]
        text = TEXT + letter + self.letters * capital
        answer = TEXT + letter + (0 if lower else self.letters)
        text[spaces] = answer[spaces] = 2
        return Example((int(lower), *text.tolist()), tuple(answer.tolist()), "lower" if lower else "upper")


ENTRY = Entry("case", CaseConversion, summary="text in upper or lower case, as its mark says")
