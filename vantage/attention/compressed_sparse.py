"""Compressed sparse attention (CSA, DeepSeek-V4 2026): small windows that overlap, of which a query takes the best K.

An entry is made of its window and the one before, each with features of its own. An indexer has entries of its own,
smaller and made in the same way; scores, choice and gradients are those of ``TopKIndexer``, with entries for keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vantage.attention.compressed import ChoiceInputs, CompressedAttention, CompressedConfig, build_norm
from vantage.attention.heavily_compressed import NOT_TURNED_BACK
from vantage.attention.indexer import best_keys
from vantage.attention.key_windows import WindowPool
from vantage.errors import BadInput
from vantage.spec.kept import KeptStream
from vantage.spec.model import BuildContext, Scores
from vantage.spec.operations import linear_operations
from vantage.spec.parts import Buildable, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, Refusal
from vantage.spec.transforms import chain


@dataclass(frozen=True)
class EntryChooser:
    """``keep`` entries for each query; ``heads`` small queries of ``head_dim``. ``qk`` are its own position transforms,
    and act on the last ``rope_dim`` of a head."""

    keep: int = 512
    heads: int = 64
    head_dim: int = 128
    rope_dim: int | None = None  # None: all of it
    qk: tuple[Buildable, ...] = ()

    def __post_init__(self) -> None:
        if min(self.keep, self.heads, self.head_dim) < 1:
            raise BadInput(f"keep={self.keep}, heads={self.heads}, head_dim={self.head_dim}: each must be 1 or more")
        if self.rope_dim is not None and not 0 <= self.rope_dim <= self.head_dim:
            raise BadInput(f"rope_dim={self.rope_dim} of heads of {self.head_dim}: give no more than that")

    @property
    def rotary_dim(self) -> int:
        return self.head_dim if self.rope_dim is None else self.rope_dim


@dataclass(frozen=True)
class CompressedSparse(CompressedConfig):
    """Query t sees the best of the ⌊(t + 1)/m⌋ windows that are whole by then, and ``near`` tokens."""

    ratio: int = 4
    choice: EntryChooser = EntryChooser()

    overlap: ClassVar[bool] = True

    def kept(self, dim: int) -> tuple[KeptStream, ...]:
        return KeptStream(1, 4 * dim), KeptStream(1, 4 * self.choice.head_dim)

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        chosen = f"the best {self.choice.keep:,} of {self.ratio} keys each"
        return f"{chosen}, {s.heads} / 1 × {s.key_dim}", f"{self.near} near", *self.scores.describe()

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return CompressedAttention(self, self.shape(width), context, EntryChoice(self, width, context.linear))


class EntryChoice(nn.Module):
    def __init__(self, config: CompressedSparse, width: int, linear: Callable[[int, int, bool], nn.Module]):
        super().__init__()
        c = self.config = config.choice
        rank = config.maps.q_rank
        self.q = linear(width if rank is None else rank, c.heads * c.head_dim, False)
        self.weights = linear(width, c.heads, False)
        self.pool = WindowPool(linear, width, c.head_dim, config.ratio, overlap=config.overlap)
        self.norm = build_norm(config.norm, c.head_dim)
        own = Shape(width, c.heads, 1, c.head_dim, c.head_dim, rotary_dim=c.rotary_dim)
        self.qk = nn.ModuleList(part.build(own) for part in c.qk)

    def keep(self, x_BTD: Tensor) -> Tensor:
        return self.pool.keep(x_BTD)

    @torch.no_grad()
    def choose(self, inputs: ChoiceInputs) -> Tensor | None:
        entries = inputs.windows.entries
        if entries.shape[1] <= self.config.keep:
            return None
        entry = self.norm(self.pool(inputs.kept, inputs.windows))
        q = self.q(inputs.low).unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        q, k = self._placed("query", q, inputs.pos), self._placed("key", entry, inputs.windows.entries)
        pair = inputs.pos.against(entries)
        return best_keys(q, k[:, 0], self.weights(inputs.x), pair, inputs.mask, self.config.keep)

    def _placed(self, side: str, x_BHTd: Tensor, pos: Positions) -> Tensor:
        still, moving = x_BHTd.split((self.config.head_dim - self.config.rotary_dim, self.config.rotary_dim), -1)
        return torch.cat([still, chain(self.qk, side, moving, pos)], -1)

    def operations(self, tokens: int, entries: int) -> tuple[int, int]:
        maps = linear_operations(self.pool.maps, tokens)
        if entries <= self.config.keep:
            return maps, 0
        maps += sum(linear_operations(m, tokens) for m in (self.q, self.weights))
        return maps, 2 * tokens * entries * self.config.heads * self.config.head_dim


ENTRY = Entry(
    "compressed-sparse",
    CompressedSparse,
    "Compressed sparse (CSA)",
    "Near tokens as they are, and of the windows of keys before, each as one, the best K (DeepSeek-V4 2026).",
    default=lambda heads: CompressedSparse(heads or 1, near=8, choice=EntryChooser(keep=8, heads=4, head_dim=16)),
    variants={
        "csa": lambda size: CompressedSparse(
            size.heads, ratio=2, near=3, norm=size.norm, choice=EntryChooser(2, heads=3, head_dim=size.head_dim)
        ),
        "csa-turned": lambda size: CompressedSparse(
            size.heads,
            12,
            ratio=3,
            near=2,
            rope_dim=size.head_dim,
            turned_values=True,
            scores=Scores(sinks=True),
            choice=EntryChooser(1, heads=2, head_dim=6),
        ),
    },
    refusals=(
        Refusal({"encoding": ("cope", "path", "dape", "selective-rope")}, "windows of keys stand in their place"),
        Refusal({"attention": ("csa-turned",), "encoding": NOT_TURNED_BACK}, "cannot turn an output back"),
        Refusal({"attention": ("csa-turned",), "kernel": ("sdpa",)}, "sdpa has no sinks"),
    ),
)
