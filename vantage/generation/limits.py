"""What a model can be asked for: whether it generates at all, how far, and for which declared length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from vantage.errors import BadInput, Refused
from vantage.model import Model


@final
@dataclass(frozen=True)
class GenerationLimits:
    """``original``: the length past which frequencies change; ``table``: how many positions there are at all."""

    original: int | None
    table: int | None

    @staticmethod
    def of(model: Model) -> GenerationLimits:
        """Raises, by name, where a model cannot generate."""
        if (reason := model.spec.why_no_generation) is not None:
            raise Refused(reason)
        if model.training:
            raise BadInput("the model is in training mode: call model.eval() before it generates")
        return GenerationLimits(model.spec.original_length, model.max_positions)

    def declared(self, tokens: int) -> int | None:
        """The length to declare for so many tokens: doubled until they fit, so that growing is seldom."""
        if self.original is None:
            return None
        length = self.original
        while length < tokens:
            length *= 2
        return length

    def cut(self, prompt: int, max_tokens: int) -> int:
        """How many tokens can follow. The last one need not be read, so it needs no position."""
        if self.table is None:
            return max_tokens
        if prompt > self.table:
            raise BadInput(f"a prompt of {prompt} tokens: this model has {self.table} positions, so give at most that")
        return min(max_tokens, self.table - prompt + 1)
