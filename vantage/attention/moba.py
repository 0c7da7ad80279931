"""MoBA, mixture of block attention (Lu et al. 2025): a query head attends to its own block of keys and the best others.

A block's score is q · mean(keys), which is the mean of its keys' scores. The own block and the best of those that a
query sees whole are attended to token by token, with one softmax; the choice has no gradient. So it is a normaliser, of
which queries, keys, caches and encodings know nothing. Blocks are counted by rank in a document, so padding, packed
documents and keys in any arrangement move none. A score bias or a cap counts in a block's mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.attention.grouped import GroupedQuery, GroupedQueryAttention
from vantage.attention.indexer import best
from vantage.attention.key_windows import KeyWindows
from vantage.attention.native_sparse import FORGETTING
from vantage.errors import BadInput, Refused
from vantage.spec.model import BuildContext, CacheShape, Scores
from vantage.spec.normalisers import Softmax
from vantage.spec.parts import Shape
from vantage.spec.positions import Pair
from vantage.spec.registry import Entry, Refusal

FORMS = ("moba", "moba-sinks")  # in the conformance matrix
HIDDEN = float("-inf")


@dataclass(frozen=True)
class MoBA:
    """``keep`` blocks of ``size`` tokens for each query and head, its own among them."""

    heads: int
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: width / heads
    size: int = 512
    keep: int = 3
    scores: Scores = Scores()

    def __post_init__(self) -> None:
        if self.size < 1 or self.keep < 1:
            raise BadInput(f"size={self.size}, keep={self.keep}: a query sees its own block, so give 1 or more of each")
        if not isinstance(self.scores.normalise, Softmax):
            name = type(self.scores.normalise).__name__
            raise Refused(f"chosen blocks share one softmax, not {name}: leave scores.normalise out")

    @property
    def grouped(self) -> GroupedQuery:
        """Its queries, keys and values."""
        return GroupedQuery(self.heads, self.kv_heads, self.head_dim, scores=self.scores)

    def shape(self, width: int) -> Shape:
        return self.grouped.shape(width)

    def cache_shape(self, width: int) -> CacheShape:
        return replace(self.grouped.cache_shape(width), every_key=True)

    def divided(self, ranks: int, width: int) -> MoBA:
        share = self.grouped.divided(ranks, width)
        return replace(self, heads=share.heads, kv_heads=share.kv_heads, head_dim=share.head_dim)

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        heads = f"mixture of blocks, {s.heads} / {s.kv_heads} × {s.key_dim}"
        return heads, f"{self.keep:,} blocks of {self.size}", *self.scores.describe()

    def build(self, width: int, context: BuildContext) -> nn.Module:
        if context.indexer is not None:
            raise Refused("an indexer chooses tokens, and MoBA chooses blocks by itself: leave the indexer out")
        return GroupedQueryAttention(self.grouped, self.shape(width), context, BlockChoice(self))

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("MoBA is self-attention only; use GroupedQuery for cross-attention")


class BlockChoice(nn.Module):
    """The normaliser of every pass: it learns nothing."""

    def __init__(self, config: MoBA):
        super().__init__()
        softmax = config.scores.normalise
        assert isinstance(softmax, Softmax)
        self.normaliser = ChosenBlocks(config.size, config.keep, softmax)

    def forward(self, x_BTD: Tensor) -> ChosenBlocks:
        return self.normaliser

    def operations(self, tokens: int) -> int:
        return 0


@dataclass(frozen=True)
class ChosenBlocks:
    """A softmax over the tokens of a query's blocks."""

    size: int
    keep: int
    softmax: Softmax = Softmax()

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        assert pair is not None, "it asks which tokens make a block"
        own = _own_block(self.size, pair)
        if self.keep == 1:
            return self.softmax(scores_BHTS.masked_fill(~own, HIDDEN), sinks)
        windows = KeyWindows.of(pair, self.size, 1, causal=True)
        means = windows.mean_scores(scores_BHTS.detach())[..., :-1]
        means = means.masked_fill(_own_block(self.size, pair.q.against(windows.entries)), HIDDEN)
        ranked = best(means.flatten(1, 2), windows.entries, self.keep - 1).unflatten(1, means.shape[1:3])
        others = torch.zeros_like(means, dtype=torch.bool).scatter(-1, ranked, True) & (means > HIDDEN)
        chosen = windows.at_tokens(F.pad(others, (0, 1))) | own
        return self.softmax(scores_BHTS.masked_fill(~chosen, HIDDEN), sinks)


def _own_block(size: int, pair: Pair) -> Tensor:
    """(R, 1, T, S): true at keys of a query's own block."""

    def make() -> Tensor:
        q, k = (place.rank // size for place in pair.places())
        return q == k

    return pair.once((MoBA, size), make)


ENTRY = Entry(
    "moba",
    MoBA,
    "Mixture of blocks (MoBA)",
    "Each query head attends to its own block of keys and to the best others, by their mean key (Lu et al. 2025).",
    default=lambda heads: MoBA(heads or 1, size=8),
    variants={
        "moba": lambda size: MoBA(size.heads, size.heads // 2, size=2),
        "moba-sinks": lambda size: MoBA(size.heads, 1, size=3, keep=2, scores=Scores(sinks=True)),
    },
    refusals=(
        Refusal({"attention": FORMS, "kernel": ("sdpa",)}, "sdpa has "),
        Refusal({"attention": FORMS, "kernel": ("flex",)}, "flex has softmax alone"),
        Refusal({"attention": FORMS, "cache": FORGETTING}, "looks at every key before a query"),
    ),
)
