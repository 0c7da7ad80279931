"""Modular arithmetic, without brackets and with (Delétang et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vantage.errors import BadInput
from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, fits, numbers, whole

ADD, SUBTRACT, TIMES, OPEN, CLOSE = range(5)  # from the modulus on


def _value(operands: list[int], operators: list[int]) -> int:
    """Products first, then sums and differences from the left."""
    total, term = 0, operands[0]
    for operator, operand in zip(operators, operands[1:], strict=True):
        if operator == TIMES:
            term *= operand
        else:
            total, term = total + term, operand if operator == ADD else -operand
    return total + term


def _apply(left: int, operator: int, right: int) -> int:
    return left + right if operator == ADD else left - right if operator == SUBTRACT else left * right


@dataclass(frozen=True)
class ModularArithmetic:
    """``1+2*4-3`` → ``1``: the value mod 5, products before sums and differences.

    ``brackets=True``: every operation has its brackets, ``((1+2)*(4-3))`` → ``3``. Which are done first is drawn
    evenly: the last of all is any of the operators. Numbers and operators are drawn evenly. Products make 0 the
    commonest answer: without brackets at small lengths (a quarter at length 3), with them at all (0.3 at length 40).

    Length: numbers; the prompt has ``2 * length - 1`` symbols, with brackets ``4 * length - 3``. From Delétang et al.
    2023 and Ruoss et al. 2023, where the length counts symbols and the task with brackets has a sign as well.
    """

    modulus: int = 5
    brackets: bool = False

    def __post_init__(self) -> None:
        whole(self, "modulus", self.modulus, 2)
        if not isinstance(self.brackets, bool):
            raise BadInput(f"ModularArithmetic: brackets={self.brackets!r} is neither true nor false")

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*numbers(self.modulus), "+", "-", "*", *(("(", ")") if self.brackets else ()))

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        operands = rng.integers(self.modulus, size=length).tolist()
        operators = rng.integers(3, size=length - 1).tolist()
        if self.brackets:
            return self._bracketed(operands, operators, rng.random(length - 1).argsort().tolist())
        prompt = [0] * (2 * length - 1)
        prompt[::2] = operands
        prompt[1::2] = [self.modulus + operator for operator in operators]
        return Example(tuple(prompt), (_value(operands, operators) % self.modulus,))

    def _bracketed(self, operands: list[int], operators: list[int], turns: list[int]) -> Example:
        """Put brackets around the operators by turns; each joins the expressions that lie beside it by then."""
        text = [[operand] for operand in operands]
        value = list(operands)
        other = list(range(len(operands)))  # at each end of an expression, where its other end is
        for i in turns:
            left, right = other[i], other[i + 1]
            text[left] = [self.modulus + OPEN, *text[left], self.modulus + operators[i], *text[i + 1]]
            text[left].append(self.modulus + CLOSE)
            value[left] = _apply(value[left], operators[i], value[i + 1]) % self.modulus
            other[left], other[right] = right, left
        return Example(tuple(text[0]), (value[0],))


ENTRY = Entry("modular-arithmetic", ModularArithmetic, summary="+ - * mod 5, products first; or with all brackets")
