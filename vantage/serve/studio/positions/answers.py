"""What the Positions page is told."""

from __future__ import annotations

from vantage.figures import Figure
from vantage.serve.studio.answers import EncodingEntry, EncodingValues, StudioAnswer


class EncodingList(StudioAnswer):
    encodings: list[EncodingEntry]


class ModelEncoding(StudioAnswer):
    """The encoding that a model has; null where it is none of those offered."""

    model: str
    position: EncodingValues | None


class EncodingFigures(StudioAnswer):
    figures: list[Figure]


class TokenMoveAnswer(StudioAnswer):
    """Scores and weights of one query, by key, before and after a token was moved. A key not seen has no score."""

    tokens: list[str]
    before: list[float]
    after: list[float]
    scores_before: list[float | None]
    scores_after: list[float | None]


class PerplexityPair(StudioAnswer):
    before: float
    after: float


class TextPair(StudioAnswer):
    before: str
    after: str


class EncodingSwapAnswer(StudioAnswer):
    """A model before and after its encoding was swapped. ``untrained``: the other one has weights nobody trained."""

    perplexity: PerplexityPair
    text: TextPair
    over_position: Figure
    untrained: bool
    tokens: int
