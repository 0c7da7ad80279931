"""What is measured of a model's prediction: one token, or one token against another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.inspect.select import labels
from vantage.model import Model


@final
@dataclass(frozen=True)
class Target:
    """The logit of a token less that of another; without another, the log-probability of the token."""

    token: int
    against: int | None = None
    name: str = ""

    def measure(self, logits_BV: Tensor) -> Tensor:
        """(B,)"""
        wide = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
        if self.against is None:
            return wide.log_softmax(-1)[:, self.token]
        return wide[:, self.token] - wide[:, self.against]

    @staticmethod
    def of(model: Model, target: Any, against: Any = None) -> Target:
        """From texts of one token, or from tokens."""
        token = read_token(model, target, "target")
        other = None if against is None else read_token(model, against, "against")
        shown = [repr(label) for label in labels(model, [n for n in (token, other) if n is not None])]
        return Target(
            token,
            other,
            f"logit difference {shown[0]} − {shown[1]}" if other is not None else f"log-probability of {shown[0]}",
        )


def read_token(model: Model, token: Any, name: str) -> int:
    """A token by its number, or by a text that is one token."""
    if isinstance(token, str):
        if model.tokenizer is None:
            raise BadInput(f"{name}={token!r}: this model has no tokenizer; give the number of a token")
        tokens = model.tokenizer.encode(token, special=False)
        if len(tokens) != 1:
            pieces = ", ".join(repr(piece) for piece in labels(model, tokens))
            raise BadInput(
                f"{name}={token!r} is {len(tokens)} tokens ({pieces}): give one, most words with a space before them"
            )
        return tokens[0]
    if type(token) is not int or not 0 <= token < model.spec.vocab:
        raise BadInput(f"{name}={token!r}: give a text of one token, or a token from 0 to {model.spec.vocab - 1}")
    return token
