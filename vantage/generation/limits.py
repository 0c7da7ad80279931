"""What a model can be asked for: whether it generates at all, how far, and for which declared length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from vantage.errors import BadInput, Refused
from vantage.model import Model
from vantage.position import Learned

FAR = 2**30


@final
@dataclass(frozen=True)
class GenerationLimits:
    """``original``: the length past which frequencies change; ``table``: how many positions there are at all."""

    original: int | None
    table: int | None

    @staticmethod
    def of(model: Model) -> GenerationLimits:
        """Raises, by name, where a model cannot generate."""
        spec = model.spec
        if spec.head is None:
            raise Refused("this model has no head: it returns hidden states, and no tokens can be chosen from those")
        if spec.embedding.source is not None:
            raise Refused(f"this model reads {spec.embedding.source}, not tokens: it cannot go on from its own output")
        for i, layer in enumerate(spec.layers):
            if not (layer.mask.settled(FAR) and layer.mask.settled(FAR + 1)):
                raise Refused(
                    f"layer {i} sees what comes after ({layer.mask}): every new token would change the earlier ones. "
                    "An encoder cannot generate; use a decoder"
                )
        if model.training:
            raise BadInput("the model is in training mode: call model.eval() before it generates")
        tables = [p.max_length for p in spec.embedding.inputs if isinstance(p, Learned) and p.extend is None]
        return GenerationLimits(spec.original_length, min(tables, default=None))

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
