"""Stack manipulation (Delétang et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, fits

POP, PUSH, BOTTOM = 2, 3, 5  # after the values 0 and 1; a push of 1 is PUSH + 1


@dataclass(frozen=True)
class StackManipulation:
    """``0 1 1 <push0> <pop> <pop>`` → ``1 0 .``: a stack from its bottom up, what is done to it, and what it is then.

    The answer reads from the top down and ends with ``.``, the bottom, so that an empty stack has an answer too. A pop
    of an empty stack does nothing. How many of the symbols are the stack is drawn evenly, at least one is, and at
    least one is an action unless the length is 1; values and actions are drawn evenly.

    Length: values and actions together, all of the prompt. From Delétang et al. 2023 and Ruoss et al. 2023.
    """

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("0", "1", "<pop>", "<push0>", "<push1>", ".")

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        values = int(rng.integers(1, length)) if length > 1 else 1
        stack = rng.integers(2, size=values).tolist()
        actions = rng.integers(POP, BOTTOM, size=length - values).tolist()
        prompt = (*stack, *actions)
        for action in actions:
            if action >= PUSH:
                stack.append(action - PUSH)
            elif stack:
                stack.pop()
        return Example(prompt, (*reversed(stack), BOTTOM))


ENTRY = Entry("stack", StackManipulation, summary="a stack after pushes and pops, from the top")
