"""Edits that are often wanted: attention cut between tokens, and directions that steer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.inspect.select import Numbers, numbers
from vantage.interventions.edits import Edit, Several
from vantage.interventions.trace import trace
from vantage.model import Model


def knock_out(
    model: Model, pairs: Iterable[tuple[int, int]], *, layers: Numbers = None, heads: Several = None
) -> list[Edit]:
    """Edits by which a query does not see a key: ``pairs`` of positions, (query, key), in these layers and heads.

    The weights of the other keys grow to a sum of 1. A query that is left without a key gives 0.
    """
    chosen = None if layers is None else numbers(layers, len(model.blocks), "layer")
    names = ["layers.*.scores"] if chosen is None else [f"layers.{n}.scores" for n in chosen]
    keys_of: dict[int, list[int]] = {}
    for query, key in pairs:
        keys_of.setdefault(query, []).append(key)
    if not keys_of:
        raise BadInput("pairs: give at least one pair of positions, (query, key)")
    return [
        Edit(name, float("-inf"), positions=query, keys=keys, heads=heads)
        for name in names
        for query, keys in keys_of.items()
    ]


@torch.inference_mode()
def steering_vector(
    model: Model,
    positive: Iterable[Any],
    negative: Iterable[Any],
    *,
    activation: str,
    position: int | None = -1,
) -> Tensor:
    """(width,): how an activation differs in the mean between two sets of texts; add it with ``vt.Edit(…, add=True)``.

    ``position``: of the token that is looked at; ``None``: the mean over all tokens of a text.
    """

    def mean(texts: Iterable[Any], name: str) -> Tensor:
        vectors = []
        for text in [texts] if isinstance(texts, str) else texts:
            value = trace(model, text, read=activation)[activation][0]
            vectors.append(value.mean(0) if position is None else value[position])
        if not vectors:
            raise BadInput(f"{name}: give at least one text")
        return torch.stack(vectors).mean(0)

    return mean(positive, "positive") - mean(negative, "negative")
