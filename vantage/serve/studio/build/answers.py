"""What the Build page is told."""

from __future__ import annotations

from typing import Any, Literal

from vantage.serve.studio.answers import PartCount, StudioAnswer


class ContextBytes(StudioAnswer):
    """What the cache of one row takes at a context."""

    context: int
    bytes: int


class BlockEntry(StudioAnswer):
    """One block of the diagram."""

    name: str
    mask: str
    window: int | None
    position: list[str]
    attention: str
    around: list[str]  # what else the attention has: an indexer, keys of an earlier layer, a gate
    heads: int
    kv_heads: int
    head_width: int
    cross: bool
    ffn: str
    norm: str
    wiring: str
    stack: Literal["encoder", "decoder"]


class BuildAnswer(StudioAnswer):
    """A model as code, as a spec and in numbers. ``why_not``: why there is no way to train it, where there is none."""

    code: str
    spec_json: dict[str, Any]
    parameters: int
    parameters_by_part: list[PartCount]
    cache_bytes: list[ContextBytes]
    layers: list[BlockEntry]
    toml: str | None
    command: str | None
    why_not: str | None
