"""Differential attention (Ye et al. 2024): the weights of one softmax less a share of another's.

out = (1 - λ₀) · norm((P₁ - λ P₂) V), λ = e^(q₁·k₁) - e^(q₂·k₂) + λ₀, the four vectors learned. What both softmaxes give
to keys that do not matter cancels. Rows of weights sum to 1 - λ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.attention.head_width import head_width
from vantage.attention.scorer import Scorer, keys_on_reading, merge_heads
from vantage.errors import BadInput, Refused
from vantage.spec.attention import ActivationColumns, Pieces, PositionParts, QueriesAndKeys
from vantage.spec.model import BuildContext, CacheShape, NormConfig, Scores
from vantage.spec.operations import AttentionWork, linear_operations
from vantage.spec.parts import Context, Shape, View
from vantage.spec.registry import Entry
from vantage.spec.transforms import acts_on_reading, chain, widened

LAMBDA_STD = 0.1  # of the four vectors, at first
EPS = 1e-5  # of a norm without weights


@dataclass(frozen=True)
class Differential:
    """``heads`` are those of the queries: two softmaxes are one output, so there are half as many of those.

    Key heads come in pairs with one value of twice their width. The queries of a pair's first head stand before those
    of its second: with one query head a key head, 2h and 2h + 1 make an output (DiffLlama has them half the heads
    apart).
    """

    heads: int
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: width / heads
    norm: NormConfig | None = None  # of each output; None: RMS without weights (DiffLlama)
    start: float | None = None  # λ₀; None: 0.8 - 0.6 e^(-0.3 l) in layer l, from 0
    bias: bool = False  # on q, k and v
    out_bias: bool = False
    scores: Scores = Scores()

    def shape(self, width: int) -> Shape:
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if self.heads < 2 or kv_heads < 2 or self.heads % kv_heads or kv_heads % 2:
            raise BadInput(
                f"{self.heads} heads over {kv_heads} of keys: the second must divide the first, and both come in pairs"
            )
        head_dim = head_width(width, self.heads, self.head_dim)
        return Shape(width, self.heads, kv_heads, head_dim, 2 * head_dim, rotary_dim=head_dim)

    def cache_shape(self, width: int) -> CacheShape:
        """A pair of keys is kept as one, beside their value: what is forgotten of one is of the other."""
        s = self.shape(width)
        return CacheShape(s.kv_heads // 2, 2 * s.key_dim, s.value_dim)

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        return f"differential, {s.heads} / {s.kv_heads} × {s.key_dim}", *self.scores.describe()

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return DifferentialAttention(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("differential attention is self-attention only; use GroupedQuery for cross-attention")


class DifferentialAttention(nn.Module):
    crosses = False

    def __init__(self, config: Differential, shape: Shape, context: BuildContext):
        super().__init__()
        s = self.shape = shape
        self.index, self.pairs, self.biased = context.index, s.kv_heads // 2, config.bias
        self.start = first_lambda(context.index) if config.start is None else config.start
        self.widths = (s.heads * s.key_dim, s.kv_heads * s.key_dim, self.pairs * s.value_dim)
        self.qkv = context.linear(s.width, sum(self.widths), config.bias)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.empty(s.key_dim).normal_(0, LAMBDA_STD)) for _ in range(4)
        )
        self.norm = UnitLength() if config.norm is None else config.norm.build(s.value_dim)
        self.out = context.linear(s.heads // 2 * s.value_dim, s.width, config.out_bias)
        self.qk = nn.ModuleList(context.qk)  # pyright: ignore[reportArgumentType] (every transform is a module)
        self.scorer = Scorer(config.scores, s, context)

    def project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, d), k (B, G, T, d) and v (B, G / 2, T, 2 d)."""
        counts = (self.shape.heads, self.shape.kv_heads, self.pairs)
        projected = zip(self.qkv(x_BTD).split(self.widths, dim=-1), counts, strict=True)
        q, k, v = (x.unflatten(-1, (n, -1)).transpose(1, 2) for x, n in projected)
        return q, k, v

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        q_raw, k, v = self.project(x_BTD)
        view = self.keep(x_BTD, ctx, k, v)
        pos = ctx.standing(view)
        q = chain(self.qk, "query", q_raw, pos)
        out = ctx.attend("self", self.index, q, view, self.scorer.need(q_raw, q, view, pos, x_BTD))
        first, second = out.unflatten(1, (self.pairs, 2, -1)).unbind(2)
        difference = (first - self.share().to(out.dtype) * second).flatten(1, 2)  # (B, H / 2, T, 2 d)
        return self.out(merge_heads((1 - self.start) * self.norm(difference)))

    def share(self) -> Tensor:
        """λ, in float32 at least."""
        wide = torch.promote_types(self.lambda_q1.dtype, torch.float32)
        first = (self.lambda_q1 * self.lambda_k1).sum(dtype=wide).exp()
        return first - (self.lambda_q2 * self.lambda_k2).sum(dtype=wide).exp() + self.start

    def keep(self, x_BTD: Tensor, ctx: Context, k: Tensor, v: Tensor) -> View:
        """Take pairs of keys and their values into the layer's cache; what there is to look at, for every key head."""
        cache = ctx.caches[self.index]
        late = cache.late or acts_on_reading(self.qk)
        k = k if late else chain(self.qk, "key", k, ctx.pos)
        pairs = k.unflatten(1, (self.pairs, 2)).transpose(2, 3).flatten(3)
        view = cache.append(ctx.pos, pairs, v, *self.scorer.streams(x_BTD, ctx.pos))
        k = view.k.unflatten(3, (2, -1)).transpose(2, 3).flatten(1, 2)
        k = keys_on_reading(self.qk, k, view) if late else k
        return view._replace(k=k, v=view.v.repeat_interleave(2, 1))

    # ---- what others ask

    def projections(self) -> dict[str, Pieces]:
        return {"qkv": tuple(zip("qkv", self.widths, strict=True))}

    def activations(self) -> dict[str, ActivationColumns]:
        """A head is what two softmaxes made, after norm and factor."""
        s, (queries, keys, values) = self.shape, self.widths
        return {
            "q": ActivationColumns("qkv", 0, queries, s.heads),
            "k": ActivationColumns("qkv", queries, keys, s.kv_heads),
            "v": ActivationColumns("qkv", queries + keys, values, self.pairs),
            "heads": ActivationColumns("out", 0, s.heads // 2 * s.value_dim, s.heads // 2, given=True),
        }

    def position_parts(self) -> PositionParts:
        return self.scorer.position_parts(self.qk)

    def queries_and_keys(self, x_BTD: Tensor) -> QueriesAndKeys:
        q, k, _ = self.project(x_BTD)
        return QueriesAndKeys(q, k)

    def score_width(self, queries: int, keys: int) -> int:
        return widened(self.qk, self.shape.key_dim)

    def operations(self, work: AttentionWork) -> dict[str, int]:
        return work.core(self.shape.value_dim) | {
            "projections": linear_operations(self.qkv, work.size.tokens),
            "output": linear_operations(self.out, work.size.tokens),
        }


def first_lambda(layer: int) -> float:
    """λ₀ of a layer, counted from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class UnitLength(nn.Module):
    """x / rms(x)."""

    def __init__(self, eps: float = EPS):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), None, self.eps)


ENTRY = Entry(
    "differential",
    Differential,
    "Differential",
    "The weights of one softmax less a learned share of another's, so that noise in both cancels (Ye et al. 2024).",
    default=lambda heads: Differential(heads or 2),
    variants={
        "differential": lambda size: Differential(size.heads, size.heads // 2, norm=size.norm),
        "differential-multi-head": lambda size: Differential(size.heads),
    },
)
