"""Which symbol comes last? The simplest retrieval."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vantage.spec.registry import Entry, parameter
from vantage.training.tasks.task import Example, alphabet, fits, whole


@dataclass(frozen=True)
class LastSymbol:
    """``c a b`` → ``b``. A length counts symbols."""

    kinds: int = field(default=4, metadata=parameter("different symbols", 2, 26))

    chance = 0.25  # no annotation: not a field; with four kinds

    def __post_init__(self) -> None:
        whole(self, "kinds", self.kinds, 2, 26)

    @property
    def symbols(self) -> tuple[str, ...]:
        return alphabet(self.kinds)

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        prompt = tuple(rng.integers(self.kinds, size=length).tolist())
        return Example(prompt, prompt[-1:])


ENTRY = Entry("last-symbol", LastSymbol, summary="the symbol that stands last")
