"""What the Lens page is told."""

from __future__ import annotations

from typing import Literal

from vantage.figures import Figure
from vantage.serve.studio.answers import StudioAnswer


class LensAnswer(StudioAnswer):
    """The best guesses after each block, (stages, tokens, guesses); the first stage is the embedding.

    ``target``: the log-probability of the target, ``rank``: how many tokens are likelier; null without a target.
    """

    tokens: list[str]
    stages: list[str]
    guesses: list[list[list[str]]]
    probabilities: list[list[list[float]]]
    entropy: list[list[float]]
    divergence: list[list[float]]
    target: list[list[float]] | None
    rank: list[list[int]] | None
    ms: float


StreamPart = Literal["embedding", "attention", "feed-forward"]


class VectorStep(StudioAnswer):
    """One part's turn on the residual stream of one token.

    ``size``: how long the vector is that it adds; ``length``: how long the stream is afterwards; ``guess``: what the
    model would write then. ``adds``: to the target's logit, by the direct way; null where that is no sum.
    """

    layer: int | None
    part: StreamPart
    size: float
    length: float
    guess: str
    probability: float
    adds: float | None


class VectorAnswer(StudioAnswer):
    """One token's vector, from the embedding to the last block. ``note``: why nothing is told of a logit."""

    token: str
    measure: str | None
    logit: float | None
    steps: list[VectorStep]
    figures: list[Figure]
    note: str | None


class CandidatePair(StudioAnswer):
    """A token that may come next, with its probability in both cases."""

    text: str
    before: float
    after: float


class AblationAnswer(StudioAnswer):
    """How a model goes on with a text, and how it does without one of its parts. ``moved``: half the sum of what the
    probabilities of the next token changed by."""

    part: str
    before: str
    after: str
    candidates: list[CandidatePair]
    moved: float


class SweepCell(StudioAnswer):
    layer: int
    cell: int
    label: str
    effect: float


class SweepAnswer(StudioAnswer):
    """One intervention in every layer and position or head. ``goal``: measured on the other text, of patching."""

    by: Literal["positions", "heads"]
    measure: str
    before: float
    goal: float | None
    layers: list[int]
    cells: list[int]
    figure: Figure
    top: list[SweepCell]
