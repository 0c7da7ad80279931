"""What the Cost page is told."""

from __future__ import annotations

from vantage.figures import Figure
from vantage.serve.studio.answers import PartCount, StudioAnswer


class CacheCost(StudioAnswer):
    """One way to keep keys and values: bytes for each token, and at each of the contexts asked for."""

    kind: str
    own: bool
    bytes_per_token: int
    bytes_at: list[int]


class PartOperations(StudioAnswer):
    """``flops``: to read the whole context at once; ``decode`` and ``bytes``: for one more token after it."""

    part: str
    flops: int
    decode: int
    bytes: int


class CostAnswer(StudioAnswer):
    table: list[CacheCost]
    contexts: list[int]
    batch: int
    dtype: str
    parameters: int
    parameters_by_part: list[PartCount]
    operations: list[PartOperations]
    figures: list[Figure]


class Spent(StudioAnswer):
    """Of all tokens so far: the time, and the keys that one layer projected."""

    ms: float
    projections: int


class MeasuredPoint(StudioAnswer):
    """The event ``point``: after ``n`` tokens."""

    n: int
    length: int
    cached: Spent
    uncached: Spent


class MeasuredTotal(StudioAnswer):
    """The event ``done``. ``same``: tokens that were the same with a cache and without one."""

    figures: list[Figure]
    same: int
    tokens: int
    asked: int
    text: str
