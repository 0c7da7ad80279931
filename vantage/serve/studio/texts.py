"""Texts that a page wrote, as tokens that fit into a model."""

from __future__ import annotations

from vantage.errors import BadInput, Refused
from vantage.model import Model


def encode_fitting(model: Model, text: str, most: int, more: int = 0) -> list[int]:
    """The text as tokens, no more than ``most``, and with room for ``more`` in the model's context."""
    if model.tokenizer is None:
        raise Refused("this model has no tokenizer, and texts are read here: choose another")
    ids = list(model.tokenizer.encode(text))
    context = model.context_length
    limit = most if context is None else min(most, context - more)
    if not 0 < len(ids) <= limit:
        raise BadInput(f"the text has {len(ids):,} tokens: give 1 to {limit:,}")
    return ids
