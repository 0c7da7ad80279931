"""Heavily compressed attention (HCA, DeepSeek-V4 2026): every window of m keys is one entry, and all are seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from vantage.attention.compressed import CompressedAttention, CompressedConfig
from vantage.spec.kept import KeptStream
from vantage.spec.model import BuildContext, Scores
from vantage.spec.registry import Entry, Refusal

# What acts on keys and does not say how it is undone.
NOT_TURNED_BACK = ("mrope", "mrope-interleaved", "axial", "axial-split", "xpos", "xl", "ssmax", "fope")


@dataclass(frozen=True)
class HeavilyCompressed(CompressedConfig):
    """Query t sees the ⌊(t + 1)/m⌋ windows that are whole by then, and ``near`` tokens."""

    overlap: ClassVar[bool] = False

    def kept(self, dim: int) -> tuple[KeptStream, ...]:
        return (KeptStream(1, 2 * dim),)

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        return f"{self.ratio} keys as one, {s.heads} / 1 × {s.key_dim}", f"{self.near} near", *self.scores.describe()

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return CompressedAttention(self, self.shape(width), context)


ENTRY = Entry(
    "heavily-compressed",
    HeavilyCompressed,
    "Heavily compressed (HCA)",
    "Near tokens as they are, and every window of keys before as one, by a learned softmax over it (DeepSeek-V4 2026).",
    default=lambda heads: HeavilyCompressed(heads or 1, ratio=8, near=8),
    variants={
        "hca": lambda size: HeavilyCompressed(size.heads, ratio=3, near=4, norm=size.norm),
        "hca-turned": lambda size: HeavilyCompressed(
            size.heads, 12, ratio=2, near=3, rope_dim=size.head_dim, turned_values=True, scores=Scores(sinks=True)
        ),
    },
    refusals=(
        Refusal({"encoding": ("cope", "path", "dape", "selective-rope")}, "windows of keys stand in their place"),
        Refusal({"attention": ("hca-turned",), "encoding": NOT_TURNED_BACK}, "cannot turn an output back"),
        Refusal({"attention": ("hca-turned",), "kernel": ("sdpa",)}, "sdpa has no sinks"),
    ),
)
