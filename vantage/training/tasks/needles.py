"""Finding several things at once: multi-needle retrieval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.retrieval import FIRST_MARK, draw_filler, draw_numbers, hidden_in, needle_symbols
from vantage.training.tasks.task import Example, fits, whole


@dataclass(frozen=True)
class MultiNeedle:
    """``the sky <key1> 4 8 is blue . <key0> 2 1 the sun <key0> <key1>`` → ``2 1 4 8``.

    ``needles`` numbers of random digits behind their marks, hidden in sentences that run in a circle and begin
    anywhere. The marks at the end ask for all of them, in an order of its own; an answer is right if every number
    is. Where they stand, in which order and in which they are asked for is drawn evenly.

    Length: symbols of the prompt, all of them; ``needles * (digits + 2)`` are not filler. The filler and the marks are
    those of ``passkey``, after Mohtashami and Jaggi 2023; several needles after Kamradt 2023 and Hsieh et al. 2024.
    """

    needles: int = 3
    digits: int = 2

    def __post_init__(self) -> None:
        whole(self, "needles", self.needles, 2)
        whole(self, "digits", self.digits, 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        return needle_symbols(self.needles)

    @property
    def shortest(self) -> int:
        return self.needles * (self.digits + 2)

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        spare = length - self.shortest
        filler, codes = draw_filler(rng, spare), draw_numbers(rng, self.needles, self.digits)
        hidden, wanted = rng.permutation(self.needles).tolist(), rng.permutation(self.needles).tolist()
        cuts = sorted(rng.integers(spare + 1, size=self.needles).tolist())
        needles = ([FIRST_MARK + needle, *codes[needle]] for needle in hidden)
        prompt = [*hidden_in(filler, cuts, needles), *(FIRST_MARK + needle for needle in wanted)]
        return Example(tuple(prompt), tuple(digit for needle in wanted for digit in codes[needle]))


ENTRY = Entry("multi-needle", MultiNeedle, summary="several numbers hidden in filler, all asked for")
