"""What the Attention page is told."""

from __future__ import annotations

from typing import Literal, cast

from vantage.serve.studio.answers import EncodingInfo, StudioAnswer

SiteKind = Literal["self", "cross", "encoder"]


def site_kind(kind: str) -> SiteKind:
    """The kind of a site, which ``vantage.inspect`` has as a plain word."""
    return cast(SiteKind, kind)  # pydantic refuses any other


class AttentionSite(StudioAnswer):
    """One attention of a model."""

    kind: SiteKind
    layer: int
    heads: int


class ReadTextAnswer(StudioAnswer):
    """A text that was read: its tokens, and the attentions whose maps can be had. ``ms``: how long it took,
    null where it was kept from before."""

    id: str
    tokens: list[str]
    source_tokens: list[str] | None
    length: int
    sites: list[AttentionSite]
    position: EncodingInfo
    ms: float | None


class HeadEntry(StudioAnswer):
    """A head, and what it does most: the mean of what was measured, each null where nothing was."""

    kind: SiteKind
    layer: int
    head: int
    label: str
    entropy: float | None
    distance: float | None
    shares: dict[str, float | None]


class AtlasAnswer(StudioAnswer):
    heads: list[HeadEntry]
    counts: dict[str, int]
    tokens: int


class ScorePart(StudioAnswer):
    """A term of one query's scores, by key. ``of``: what it comes from, content or position."""

    name: str
    of: str
    values: list[float | None]


class ScoresAnswer(StudioAnswer):
    """One query's scores in parts that add up to them; null where a key is not seen.

    ``note``: why position is not told by bands, where it is not.
    """

    keys: list[str]
    score: list[float | None]
    parts: list[ScorePart]
    note: str | None
