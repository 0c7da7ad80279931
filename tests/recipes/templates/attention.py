"""Halved attention: what an attention must have, made of one that is there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from vantage.attention.grouped import GroupedQuery
from vantage.errors import BadInput, Refused
from vantage.spec.model import BuildContext, CacheShape, Scores
from vantage.spec.parts import Shape
from vantage.spec.registry import Entry, Refusal


@dataclass(frozen=True)
class Halved:
    """Multi-head attention with half as many key/value heads, and softened scores."""

    heads: int
    scores: Scores = Scores(softcap=30.0)

    def __post_init__(self) -> None:
        if self.heads < 2 or self.heads % 2:
            raise BadInput(f"heads={self.heads}: use an even number, 2 or more")

    @property
    def grouped(self) -> GroupedQuery:
        return GroupedQuery(self.heads, self.heads // 2, scores=self.scores)

    def shape(self, width: int) -> Shape:
        return self.grouped.shape(width)

    def cache_shape(self, width: int) -> CacheShape:
        return self.grouped.cache_shape(width)

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return self.grouped.build(width, context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("halved attention is self-attention only; use GroupedQuery for cross-attention")


ENTRY = Entry(
    "halved",
    Halved,
    "Halved",
    "Half as many key/value heads as query heads, and softened scores.",
    default=lambda heads: Halved(heads or 2),
    refusals=(Refusal({"kernel": ("sdpa",)}, "sdpa has no softcap"),),
)
