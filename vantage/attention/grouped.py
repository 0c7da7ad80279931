"""Multi-head, multi-query and grouped-query attention: one module, the number of key/value heads apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from vantage.attention.cross import CrossAttention
from vantage.attention.scorer import Scorer, merge_heads
from vantage.errors import BadInput, Refused
from vantage.spec.attention import Pieces, PositionParts, QueriesAndKeys
from vantage.spec.model import BuildContext, CacheShape, Scores
from vantage.spec.native import LANES, CannotLower, HeadColumns, Program
from vantage.spec.operations import AttentionWork, linear_operations
from vantage.spec.parts import Argmax, Context, Shape, Softmax, chain
from vantage.spec.registry import Entry, MatrixSize


@dataclass(frozen=True)
class GroupedQuery:
    """kv_heads = heads is multi-head, 1 is multi-query, in between is grouped-query attention."""

    heads: int
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: width / heads
    value_dim: int | None = None  # None: head_dim
    bias: bool = False  # on q, k and v
    out_bias: bool = False
    scores: Scores = Scores()
    clip: float | None = None  # q, k and v are cut off at this size (MPT)

    def __post_init__(self) -> None:
        if self.clip is not None and self.clip <= 0:
            raise BadInput(f"clip={self.clip}: use a positive number, or None to cut nothing off")

    def shape(self, width: int) -> Shape:
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if self.heads < 1 or kv_heads < 1 or self.heads % kv_heads:
            raise BadInput(f"{self.heads} heads over {kv_heads} key/value heads: the second must divide the first")
        if self.head_dim is None and width % self.heads:
            raise BadInput(f"width {width} does not divide into {self.heads} heads: change one, or say head_dim=")
        head_dim = width // self.heads if self.head_dim is None else self.head_dim
        value_dim = head_dim if self.value_dim is None else self.value_dim
        return Shape(width, self.heads, kv_heads, head_dim, value_dim, rotary_dim=head_dim)

    def cache_shape(self, width: int) -> CacheShape:
        s = self.shape(width)
        return CacheShape(s.kv_heads, s.key_dim, s.value_dim)

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        kind = {1: "multi-query", s.heads: "multi-head"}.get(s.kv_heads, "grouped-query")
        return f"{kind}, {s.heads} / {s.kv_heads} × {s.key_dim}", *self.scores.describe()

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return GroupedQueryAttention(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        if self.clip is not None:
            raise Refused("clip is for self-attention only; leave it out for cross-attention")
        return CrossAttention(self.shape(width), self.scores, context, bias=self.bias, out_bias=self.out_bias)


class GroupedQueryAttention(nn.Module):
    """softmax(q kᵀ / √d) v, over heads that may share keys and values."""

    crosses = False

    def __init__(self, config: GroupedQuery, shape: Shape, context: BuildContext):
        super().__init__()
        self.index, self.shape = context.index, shape
        self.widths = (shape.heads * shape.key_dim, shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim)
        self.qkv = context.linear(shape.width, sum(self.widths), config.bias)
        self.biased = config.bias and config.clip is None  # a clip is not linear
        self.clip = nn.Identity() if config.clip is None else nn.Hardtanh(-config.clip, config.clip)
        self.out = context.linear(shape.heads * shape.value_dim, shape.width, config.out_bias)
        self.qk = nn.ModuleList(context.qk)  # pyright: ignore[reportArgumentType] (every transform is a module)
        self.scorer = Scorer(config.scores, shape, context)

    def project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, D) to q (B, H, T, d), k (B, G, T, d) and v (B, G, T, d_v)."""
        B, T, _ = x_BTD.shape
        s = self.shape
        q, k, v = self.clip(self.qkv(x_BTD)).split(self.widths, dim=-1)
        q = q.view(B, T, s.heads, s.key_dim).transpose(1, 2)
        k = k.view(B, T, s.kv_heads, s.key_dim).transpose(1, 2)
        return q, k, v.view(B, T, s.kv_heads, s.value_dim).transpose(1, 2)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        q_raw, k, v = self.project(x_BTD)
        q = chain(self.qk, "query", q_raw, ctx.pos)
        k = chain(self.qk, "key", k, ctx.pos)
        view = ctx.caches[self.index].append(ctx.pos, k, v)
        need = self.scorer.need(q_raw, q, view.k, ctx.pos, view.pos)
        return self.out(merge_heads(ctx.attend("self", self.index, q, view, need)))

    # ---- what others ask

    def projections(self) -> dict[str, Pieces]:
        return {"qkv": tuple(zip("qkv", self.widths, strict=True))}

    def position_parts(self) -> PositionParts:
        return self.scorer.position_parts(self.qk)

    def queries_and_keys(self, x_BTD: Tensor) -> QueriesAndKeys:
        q, k, _ = self.project(x_BTD)
        return QueriesAndKeys(q, k)

    def score_width(self, queries: int, keys: int) -> int:
        return self.shape.key_dim

    def operations(self, work: AttentionWork) -> dict[str, int]:
        return work.core(self.shape.value_dim) | {
            "projections": linear_operations(self.qkv, work.size.tokens),
            "output": linear_operations(self.out, work.size.tokens),
        }

    def native(self, program: Program, src: int, into: int | None) -> int:
        s = self.shape
        if s.key_dim % LANES or s.value_dim % LANES:
            raise CannotLower(f"heads of {s.key_dim} and {s.value_dim} are no multiples of {LANES}")
        if not isinstance(self.clip, nn.Identity):
            raise CannotLower("clipped projections have no native form")
        scores = self.scorer.score_form()
        qkv = program.linear(self.qkv, src, None, "qkv")
        queries = HeadColumns(qkv, 0, s.heads, s.key_dim)
        keys = HeadColumns(qkv, self.widths[0], s.kv_heads, s.key_dim)
        for transform in self.qk:
            program.transform(transform, queries, keys)
        attended = program.attend(qkv, self.index, s, scores)
        return program.linear(self.out, attended, into, "out of attention")


def _with_scores(**scores: object) -> Callable[[MatrixSize], GroupedQuery]:
    return lambda size: GroupedQuery(size.heads, size.heads // 2, scores=Scores(**scores))  # pyright: ignore[reportArgumentType] (named below)


ENTRY = Entry(
    "grouped",
    GroupedQuery,
    "Grouped-query",
    "Query heads in groups that share keys and values: from multi-head (no sharing) to multi-query (one for all).",
    default=lambda heads: GroupedQuery(heads or 1),
    variants={
        "multi-head": lambda size: GroupedQuery(size.heads, size.heads),
        "multi-query": lambda size: GroupedQuery(size.heads, 1),
        "grouped": _with_scores(),
        "wide-values": lambda size: GroupedQuery(size.heads, size.heads // 2, value_dim=12),
        "softcap": _with_scores(softcap=2.0),
        "sinks": _with_scores(sinks=True),
        "temperature": _with_scores(normalise=Softmax(0.5)),
        "hard": _with_scores(normalise=Argmax()),
    },
    compared=False,  # by its three forms: multi-head, multi-query and grouped-query
)
