"""Copy and reverse, once or several times (Kazemnejad et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, alphabet, fits, one_of, whole


def _symbols(tokens: int, times: int) -> tuple[str, ...]:
    return (*alphabet(tokens), "<next>") if times > 1 else alphabet(tokens)


def _repeated(sequence: list[int], times: int, mark: int) -> tuple[int, ...]:
    return tuple(([*sequence, mark] * times)[:-1])


@dataclass(frozen=True)
class Copy:
    """``d a c`` → ``d a c``; ``times=2``: ``d a c <next> d a c``.

    ``kind="random"``: tokens drawn with repetition. ``kind="one"``: a single token, repeated, so that all there is to
    do is to count. ``kind="replace"``: ``x y x x x`` → ``y y y``, "replace x by y in x x x", with x and y different;
    this is what the paper's "two repeated tokens" are.

    Length: tokens to be copied; ``replace`` has two more in front. From Kazemnejad et al. 2023, whose tokens are 100
    and who set ``[NEXT]`` between repetitions as well.
    """

    kind: Literal["random", "one", "replace"] = "random"
    tokens: int = 26
    times: int = 1

    def __post_init__(self) -> None:
        one_of(self, "kind", self.kind, ("random", "one", "replace"))
        whole(self, "tokens", self.tokens, 2 if self.kind == "replace" else 1)
        whole(self, "times", self.times, 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        return _symbols(self.tokens, self.times)

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        if self.kind == "random":
            prompt = answer = rng.integers(self.tokens, size=length).tolist()
        elif self.kind == "one":
            prompt = answer = [int(rng.integers(self.tokens))] * length
        else:
            old, shift = rng.integers((0, 1), self.tokens).tolist()
            new = (old + shift) % self.tokens
            prompt, answer = [old, new, *[old] * length], [new] * length
        return Example(tuple(prompt), _repeated(answer, self.times, self.tokens))


@dataclass(frozen=True)
class Reverse:
    """``d a c`` → ``c a d``; ``times=2``: ``c a d <next> c a d``.

    Tokens drawn with repetition. Length: tokens to be reversed, all of the prompt. From Kazemnejad et al. 2023; with
    ``tokens=2`` it is the reverse string of Delétang et al. 2023 and Ruoss et al. 2023.
    """

    tokens: int = 26
    times: int = 1

    def __post_init__(self) -> None:
        whole(self, "tokens", self.tokens, 1)
        whole(self, "times", self.times, 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        return _symbols(self.tokens, self.times)

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        prompt = rng.integers(self.tokens, size=length).tolist()
        return Example(tuple(prompt), _repeated(prompt[::-1], self.times, self.tokens))


COPY = Entry(
    "copy",
    Copy,
    summary="the same again: random tokens, one repeated token, or one put for another; once or several times",
)
REVERSE = Entry("reverse", Reverse, summary="backwards, once or several times")
