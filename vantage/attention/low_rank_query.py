"""Low-rank queries (multi-matrix factorization attention, MFA, Hu et al. 2024; Step-3): many wide query heads that
share one head of keys and values, and are made of a small vector of the token.

q = W_up norm(W_down x). Parameters of the queries no longer grow with heads times width, so there can be more and wider
heads than width / heads for the same cache. Everything after the queries is grouped-query attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from vantage.attention.differential import UnitLength
from vantage.attention.grouped import GroupedQuery, GroupedQueryAttention
from vantage.errors import BadInput, Refused
from vantage.spec.model import BuildContext, CacheShape, NormConfig, Scores
from vantage.spec.operations import linear_operations
from vantage.spec.parts import Shape
from vantage.spec.registry import Entry

SHARE = 4  # of the width, for a rank that is not given: Step-3 has 2,048 of 7,168


@dataclass(frozen=True)
class LowRankQuery:
    """``rank`` is the width of what queries are made of."""

    heads: int
    kv_heads: int = 1
    head_dim: int | None = None  # None: width / heads
    rank: int | None = None  # None: a quarter of the width
    norm: NormConfig | None = None  # of the small vector; None: RMS without weights
    scores: Scores = Scores()

    indivisible = "query heads of all processes are made of one small vector, which is normed as a whole"

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise BadInput(f"rank={self.rank}: give at least 1, or None for a quarter of the width")

    @property
    def grouped(self) -> GroupedQuery:
        """Its heads, keys and values."""
        return GroupedQuery(self.heads, self.kv_heads, self.head_dim, scores=self.scores)

    def shape(self, width: int) -> Shape:
        return self.grouped.shape(width)

    def cache_shape(self, width: int) -> CacheShape:
        return self.grouped.cache_shape(width)

    def describe(self, width: int) -> tuple[str, ...]:
        heads, *scores = self.grouped.describe(width)
        return heads, f"queries of rank {self._rank(width)}", *scores

    def build(self, width: int, context: BuildContext) -> nn.Module:
        shape = self.shape(width)
        queries = RaisedQueries(self._rank(width), shape, self.norm, context)
        return GroupedQueryAttention(self.grouped, shape, context, queries=queries)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("low-rank queries are for self-attention only; use GroupedQuery for cross-attention")

    def _rank(self, width: int) -> int:
        return max(1, width // SHARE) if self.rank is None else self.rank


class RaisedQueries(nn.Module):
    """From a small vector of the token to the queries of all heads."""

    def __init__(self, rank: int, shape: Shape, norm: NormConfig | None, context: BuildContext):
        super().__init__()
        self.rank = rank
        self.norm = UnitLength() if norm is None else norm.build(rank)
        self.up = context.linear(rank, shape.heads * shape.key_dim, False)

    def forward(self, low_BTr: Tensor) -> Tensor:
        return self.up(self.norm(low_BTr))

    def operations(self, tokens: int) -> int:
        return linear_operations(self.up, tokens)


ENTRY = Entry(
    "low-rank-query",
    LowRankQuery,
    "Low-rank queries (MFA)",
    "Query heads made of a small vector of the token; one head of keys and values for all (Hu et al. 2024; Step-3).",
    default=lambda heads: LowRankQuery(heads or 1),
    variants={
        "low-rank-query": lambda size: LowRankQuery(size.heads, rank=6, norm=size.norm),
        "low-rank-query-grouped": lambda size: LowRankQuery(size.heads, size.heads // 2, rank=3),
    },
)
