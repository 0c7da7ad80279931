"""Multi-head, multi-query and grouped-query attention: one module, the number of key/value heads apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor, nn

from vantage.attention.cross import CrossAttention
from vantage.attention.head_width import head_width
from vantage.attention.scorer import MakesNormaliser, Scorer, head_outputs, keys_on_reading, merge_heads
from vantage.errors import BadInput, Refused
from vantage.spec.attention import ActivationColumns, Pieces, PositionParts, QueriesAndKeys
from vantage.spec.fingerprint import LATER
from vantage.spec.forms import GateSums
from vantage.spec.model import BuildContext, CacheShape, NormConfig, Scores
from vantage.spec.native import LANES, CannotLower, HeadColumns, Program, no_native_form
from vantage.spec.normalisers import Argmax, Entmax15, OffByOne, Sigmoid, Softmax, Sparsemax, StickBreaking
from vantage.spec.operations import AttentionWork, linear_operations, output_operations
from vantage.spec.parts import Context, ReadsOwnValues, Shape, View
from vantage.spec.registry import Entry, MatrixSize, Refusal
from vantage.spec.transforms import acts_on_reading, chain, chain_both, shift_of, widened


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
    value_norm: NormConfig | None = field(default=None, metadata=LATER)  # of each value head (Gemma 3n)

    def __post_init__(self) -> None:
        if self.clip is not None and self.clip <= 0:
            raise BadInput(f"clip={self.clip}: use a positive number, or None to cut nothing off")

    def shape(self, width: int) -> Shape:
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if self.heads < 1 or kv_heads < 1 or self.heads % kv_heads:
            raise BadInput(f"{self.heads} heads over {kv_heads} key/value heads: the second must divide the first")
        head_dim = head_width(width, self.heads, self.head_dim)
        value_dim = head_dim if self.value_dim is None else self.value_dim
        return Shape(width, self.heads, kv_heads, head_dim, value_dim, rotary_dim=head_dim)

    def cache_shape(self, width: int) -> CacheShape:
        s = self.shape(width)
        return CacheShape(s.kv_heads, s.key_dim, s.value_dim)

    def divided(self, ranks: int, width: int) -> GroupedQuery:
        """Query heads and their keys; with fewer key heads than processes, some have the same one."""
        s = self.shape(width)
        numbers = [n for n in range(1, s.heads + 1) if not (s.heads % n or (s.kv_heads % n and n % s.kv_heads))]
        if ranks not in numbers:
            heads, fit = f"{s.heads} heads over {s.kv_heads} key/value heads", " or ".join(map(str, numbers))
            raise Refused(f"{heads} do not divide among {ranks} processes: use {fit} of them")
        kv_heads = max(1, s.kv_heads // ranks)
        return replace(self, heads=s.heads // ranks, kv_heads=kv_heads, head_dim=s.key_dim, value_dim=s.value_dim)

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        kind = {1: "multi-query", s.heads: "multi-head"}.get(s.kv_heads, "grouped-query")
        normed = () if self.value_norm is None else ("normed values",)
        return f"{kind}, {s.heads} / {s.kv_heads} × {s.key_dim}", *normed, *self.scores.describe()

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return GroupedQueryAttention(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        if self.clip is not None:
            raise Refused("clip is for self-attention only; leave it out for cross-attention")
        if self.value_norm is not None:
            raise Refused("value_norm is for self-attention only; leave it out for cross-attention")
        return CrossAttention(self.shape(width), self.scores, context, bias=self.bias, out_bias=self.out_bias)


class LowRankQueries(Protocol):
    """From a small vector of each token, (B, T, rank), to the queries of all heads."""

    rank: int

    def __call__(self, low_BTr: Tensor) -> Tensor: ...


class GroupedQueryAttention(nn.Module):
    """softmax(q kᵀ / √d) v, over heads that may share keys and values."""

    crosses = False

    def __init__(
        self,
        config: GroupedQuery,
        shape: Shape,
        context: BuildContext,
        normaliser: MakesNormaliser | None = None,
        values: nn.Module | None = None,  # from a layer's own values and the pass to those that it keeps
        queries: LowRankQueries | None = None,  # from a small vector to the queries
        convolutions: nn.Module | None = None,  # around the map to queries, keys and values
    ):
        super().__init__()
        self.index, self.shape = context.index, shape
        self.source, self.shared = context.source, context.shared
        every_query, keys = shape.heads * shape.key_dim, shape.kv_heads * shape.key_dim
        projected = every_query if queries is None else queries.rank
        own = context.source is None
        self.widths = (projected, keys, shape.kv_heads * shape.value_dim) if own else (projected,)
        self.counts = (shape.heads, shape.kv_heads, shape.kv_heads) if own else (shape.heads,)
        self.qkv = context.linear(shape.width, sum(self.widths), config.bias)
        self.biased = config.bias and config.clip is None  # a clip is not linear
        self.clip = nn.Identity() if config.clip is None else nn.Hardtanh(-config.clip, config.clip)
        own_norm = config.value_norm if own else None
        self.value_norm = nn.Identity() if own_norm is None else own_norm.build(shape.value_dim)
        self.values = values
        self.queries: Any = nn.Identity() if queries is None else queries
        self.convolutions = convolutions
        self.out = context.linear(shape.heads * shape.value_dim, shape.width, config.out_bias)
        self.on_reading = acts_on_reading(context.qk)
        self.qk = nn.ModuleList(context.qk)  # pyright: ignore[reportArgumentType] (every transform is a module)
        self.scorer = Scorer(config.scores, shape, context, normaliser=normaliser)
        self.output = nn.ModuleList(context.output)  # pyright: ignore[reportArgumentType] (likewise)
        self.given_values = tuple(isinstance(transform, ReadsOwnValues) for transform in context.output)
        if any(self.given_values) and not own:
            raise Refused(
                f"layer {self.index} reads the values of layer {self.source}, and its output transform wants its own"
            )

    def project(self, x_BTD: Tensor) -> list[Tensor]:
        """(B, T, D) to q (B, H, T, d), and where it has its own to k (B, G, T, d) and v (B, G, T, d_v)."""
        return self.heads_of(self.qkv(x_BTD))

    def heads_of(self, qkv_BTC: Tensor) -> list[Tensor]:
        B, T, _ = qkv_BTC.shape
        low, *others = self.clip(qkv_BTC).split(self.widths, dim=-1)
        projected = (self.queries(low), *others)
        return [x.view(B, T, n, -1).transpose(1, 2) for x, n in zip(projected, self.counts, strict=True)]

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        mixed = None if self.convolutions is None else self.convolutions(x_BTD, self.qkv, ctx)
        q_raw, *keys_and_values = self.project(x_BTD) if mixed is None else self.heads_of(mixed)
        if keys_and_values:
            k, v = keys_and_values
            keys_and_values = [k, self.kept_values(v, ctx)]
        q, view = self.place(x_BTD, ctx, q_raw, *keys_and_values)
        need = self.scorer.need(q_raw, q, view, ctx.standing(view), x_BTD, shift=shift_of([*self.qk]))
        out = ctx.attend("self", self.index, q, view, need)
        for transform, of_values in zip(self.output, self.given_values, strict=True):
            out = transform.with_values(out, keys_and_values[1]) if of_values else transform(out, x_BTD, ctx.pos)  # pyright: ignore[reportCallIssue] (asked when it was built)
        return self.out(merge_heads(out))

    def kept_values(self, v_BGTe: Tensor, ctx: Context) -> Tensor:
        return self.value_norm(v_BGTe) if self.values is None else self.values(v_BGTe, ctx)

    def place(self, x_BTD: Tensor, ctx: Context, q: Tensor, *keys_and_values: Tensor) -> tuple[Tensor, View]:
        """Queries and what there is to look at, each transformed for where it stands."""
        if self.source is not None:
            view = ctx.views[self.source]
            return chain(self.qk, "query", q, ctx.standing(view)), view
        (k, v), cache = keys_and_values, ctx.caches[self.index]
        late = cache.late or self.on_reading
        if not late:
            q, k = chain_both(self.qk, q, k, ctx.pos)
        view = cache.append(ctx.pos, k, v, *self.scorer.streams(x_BTD, ctx.pos))
        if late:
            q = chain(self.qk, "query", q, ctx.standing(view))
            view = view._replace(k=keys_on_reading(self.qk, view.k, view))
        if self.shared:
            ctx.views[self.index] = view.unobserved()
        return q, view

    # ---- what others ask

    def projections(self) -> dict[str, Pieces]:
        return {"qkv": tuple(zip("qkv", self.widths, strict=False))}

    def activations(self) -> dict[str, ActivationColumns]:
        firsts = (sum(self.widths[:i]) for i in range(len(self.widths)))
        columns = zip("qkv", firsts, self.widths, self.counts, strict=False)
        projected = {name: ActivationColumns("qkv", first, width, heads) for name, first, width, heads in columns}
        if not isinstance(self.queries, nn.Identity):
            projected["q"] = ActivationColumns("queries", 0, self.shape.heads * self.shape.key_dim, self.shape.heads)
        return projected | {"heads": head_outputs(self.shape)}

    def position_parts(self) -> PositionParts:
        return self.scorer.position_parts(self.qk)

    def queries_and_keys(self, x_BTD: Tensor) -> QueriesAndKeys:
        if self.source is not None:
            raise Refused(f"layer {self.index} reads the keys of layer {self.source}: its scores cannot be taken apart")
        if self.convolutions is not None:
            raise Refused(f"layer {self.index} convolves its queries and keys: its scores cannot be taken apart")
        q, k, _ = self.project(x_BTD)
        return QueriesAndKeys(q, k)

    def score_width(self, queries: int, keys: int) -> int:
        return widened(self.qk, self.shape.key_dim)

    def operations(self, work: AttentionWork) -> dict[str, int]:
        tokens = work.size.tokens
        return work.core(self.shape.value_dim) | {
            "projections": linear_operations(self.qkv, tokens)
            + output_operations([self.queries], tokens)
            + self.scorer.operations(tokens),
            "output": linear_operations(self.out, tokens) + output_operations(self.output, tokens),
        }

    def native(self, program: Program, src: int, into: int | None) -> int:
        s = self.shape
        if s.key_dim % LANES or s.value_dim % LANES:
            raise CannotLower(f"heads of {s.key_dim} and {s.value_dim} are no multiples of {LANES}")
        if not isinstance(self.clip, nn.Identity):
            raise CannotLower("clipped projections have no native form")
        if not isinstance(self.value_norm, nn.Identity):
            raise CannotLower("a norm of values has no native form")
        if self.values is not None:
            raise CannotLower("values of another layer have no native form")
        if not isinstance(self.queries, nn.Identity):
            raise CannotLower("low-rank queries have no native form")
        if self.convolutions is not None:
            raise CannotLower("convolved queries and keys have no native form")
        if self.source is not None:
            raise CannotLower("keys of another layer have no native form")
        for transform in self.output:
            raise no_native_form(transform)
        scores = self.scorer.score_form()
        qkv = program.linear(self.qkv, src, None, "qkv")
        queries = HeadColumns(qkv, 0, s.heads, s.key_dim)
        keys = HeadColumns(qkv, self.widths[0], s.kv_heads, s.key_dim)
        for transform in self.qk:
            program.transform(transform, queries, keys)
        gate = scores.bias.gate if isinstance(scores.bias, GateSums) else None
        gates = None if gate is None else program.linear(gate, src, None, "gates")
        attended = program.attend(qkv, self.index, s, scores, gates)
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
        "value-norm": lambda size: GroupedQuery(size.heads, size.heads // 2, value_norm=size.norm),
        "softcap": _with_scores(softcap=2.0),
        "sinks": _with_scores(sinks=True),
        "temperature": _with_scores(normalise=Softmax(0.5)),
        "hard": _with_scores(normalise=Argmax()),
        "off-by-one": _with_scores(normalise=OffByOne()),
        "sparsemax": _with_scores(normalise=Sparsemax()),
        "entmax": _with_scores(normalise=Entmax15()),
        "sigmoid": _with_scores(normalise=Sigmoid()),
        "stick-breaking": _with_scores(normalise=StickBreaking()),
    },
    refusals=(
        Refusal(
            {"attention": ("stick-breaking",), "mask": ("prefix", "bidirectional")},
            "StickBreaking needs causal attention",
        ),
    ),
    compared=False,  # by its three forms: multi-head, multi-query and grouped-query
)
