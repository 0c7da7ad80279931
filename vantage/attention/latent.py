"""Multi-head latent attention (DeepSeek-V2): the cache keeps one small latent and one rotary key per token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vantage.attention.scorer import Scorer, head_outputs, merge_heads
from vantage.errors import BadInput, Refused
from vantage.spec.attention import ActivationColumns, PositionParts, QueriesAndKeys
from vantage.spec.model import BuildContext, CacheShape, NormConfig, Scores
from vantage.spec.native import HeadColumns, LatentDims, LatentForm, Program
from vantage.spec.operations import AttentionWork, linear_operations
from vantage.spec.parts import INIT_STD, Context, Shape, View
from vantage.spec.registry import Entry
from vantage.spec.transforms import chain


@dataclass(frozen=True)
class Latent:
    """MLA with decoupled RoPE: ``rope_dim`` of each head carries position, ``nope_dim`` carries content."""

    heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    norm: NormConfig
    q_rank: int | None = None  # None: queries are projected directly
    bias: bool = False
    scores: Scores = Scores()

    def shape(self, width: int) -> Shape:
        if min(self.heads, self.kv_rank, self.nope_dim, self.value_dim) < 1 or self.rope_dim < 0 or self.rope_dim % 2:
            raise BadInput(f"{self}: sizes must be positive and rope_dim even")
        key_dim = self.nope_dim + self.rope_dim
        return Shape(width, self.heads, self.heads, key_dim, self.value_dim, rotary_dim=self.rope_dim)

    def cache_shape(self, width: int) -> CacheShape:
        return CacheShape(1, self.kv_rank + self.rope_dim, self.kv_rank, single=True)

    def divided(self, ranks: int, width: int) -> Latent:
        """Heads; the latent is every process's."""
        if self.heads % ranks:
            raise Refused(f"{self.heads} heads do not divide among {ranks} processes: use a number that divides them")
        return replace(self, heads=self.heads // ranks)

    def describe(self, width: int) -> tuple[str, ...]:
        latent, key_dim = self.cache_shape(width).key_dim, self.shape(width).key_dim
        return f"latent, {self.heads} × {key_dim} over one of {latent}", *self.scores.describe()

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return LatentAttention(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("latent attention is self-attention only; use GroupedQuery for cross-attention")


class LatentAttention(nn.Module):
    """Two forms of one function. Expanded: keys and values of every head are formed from the latents.
    Absorbed: the up-projections move to the query and the output, and all heads share the latents as
    one key/value head. Whichever takes fewer multiplications runs."""

    crosses = False
    biased = False  # its norms are not linear

    def __init__(self, config: Latent, shape: Shape, context: BuildContext):
        super().__init__()
        self.config, self.shape, self.index = config, shape, context.index
        c, D = config, shape.width
        q_in = D if c.q_rank is None else c.q_rank
        self.q_down = nn.Identity() if c.q_rank is None else context.linear(D, c.q_rank, c.bias)
        self.q_norm = nn.Identity() if c.q_rank is None else c.norm.build(c.q_rank)
        self.q_up = context.linear(q_in, c.heads * shape.key_dim, False)
        self.kv_down = context.linear(D, c.kv_rank + c.rope_dim, c.bias)
        self.kv_norm = c.norm.build(c.kv_rank)
        self.k_up = nn.Parameter(torch.empty(c.heads, c.nope_dim, c.kv_rank))
        self.v_up = nn.Parameter(torch.empty(c.heads, c.value_dim, c.kv_rank))
        nn.init.normal_(self.k_up, std=INIT_STD)
        nn.init.normal_(self.v_up, std=INIT_STD)
        self.out = context.linear(c.heads * c.value_dim, D, c.bias)
        self.qk = nn.ModuleList(context.qk)  # pyright: ignore[reportArgumentType] (every transform is a module)
        self.scorer = Scorer(c.scores, shape, context, c.q_rank)
        self.absorbable = context.value_bias is None  # it adds to a head's values, which the absorbed form never makes

    def low(self, x_BTD: Tensor) -> Tensor:
        """What queries are made of: x in a small form, or x itself."""
        return self.q_norm(self.q_down(x_BTD))

    def project(self, x_BTD: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, nope + rope), the latent (B, 1, T, r) and the shared key (B, 1, T, rope), not yet rotated."""
        B, T, _ = x_BTD.shape
        c = self.config
        q = self.q_up(low).view(B, T, c.heads, -1).transpose(1, 2)
        latent, k_rot = self.kv_down(x_BTD).split((c.kv_rank, c.rope_dim), dim=-1)
        return q, self.kv_norm(latent)[:, None], k_rot[:, None]

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        low = self.low(x_BTD)
        q_raw, latent, k_rot = self.project(x_BTD, low)
        q_nope, q_rot = q_raw.split((self.config.nope_dim, self.config.rope_dim), dim=-1)
        kept = self.keep(x_BTD, ctx, latent, k_rot)
        pos = ctx.standing(kept)
        q_rot = chain(self.qk, "query", q_rot, pos)
        form = self.absorbed if self.absorbs(x_BTD.shape[1], kept.keys) else self.expanded
        q, view, up = form(q_nope, q_rot, kept)
        need = self.scorer.need(q_raw, q, view, pos, x_BTD, low)
        out = ctx.attend("self", self.index, q, view, need)
        return self.out(merge_heads(out if up is None else torch.einsum("bhtr,hvr->bhtv", out, up)))

    def keep(self, x_BTD: Tensor, ctx: Context, latent: Tensor, k_rot: Tensor) -> View:
        """Take latents and rotary keys into the layer's cache; what there is to look at."""
        cache = ctx.caches[self.index]
        k_rot = k_rot if cache.late else chain(self.qk, "key", k_rot, ctx.pos)
        streams = self.scorer.streams(x_BTD, ctx.pos)
        kept = cache.append(ctx.pos, torch.cat([latent, k_rot], -1), latent, *streams)
        if not cache.late:
            return kept
        latent, k_rot = kept.k.split((self.config.kv_rank, self.config.rope_dim), dim=-1)
        return kept._replace(k=torch.cat([latent, chain(self.qk, "key", k_rot, kept.pos)], -1))

    def absorbs(self, queries: int, keys: int) -> bool:
        return self.absorbable and self.absorbing_is_cheaper(queries, keys)

    def absorbing_is_cheaper(self, T: int, S: int) -> bool:
        """Compare multiplications per head for T queries over S keys."""
        c = self.config
        both = c.nope_dim + c.value_dim
        absorbed = T * c.kv_rank * both + T * S * (2 * c.kv_rank + c.rope_dim)
        expanded = S * c.kv_rank * both + T * S * (both + c.rope_dim)
        return absorbed < expanded

    def absorbed(self, q_nope: Tensor, q_rot: Tensor, kept: View) -> tuple[Tensor, View, Tensor | None]:
        q = torch.cat([torch.einsum("bhtn,hnr->bhtr", q_nope, self.k_up), q_rot], -1)
        return q, kept, self.v_up

    def expanded(self, q_nope: Tensor, q_rot: Tensor, kept: View) -> tuple[Tensor, View, Tensor | None]:
        latent, k_rot = kept.k.split((self.config.kv_rank, self.config.rope_dim), dim=-1)
        k_nope = torch.einsum("bsr,hnr->bhsn", latent[:, 0], self.k_up)
        k = torch.cat([k_nope, k_rot.expand(-1, self.config.heads, -1, -1)], -1)
        v = torch.einsum("bsr,hvr->bhsv", latent[:, 0], self.v_up)
        return torch.cat([q_nope, q_rot], -1), kept._replace(k=k, v=v), None

    def native(self, program: Program, src: int, into: int | None) -> int:
        c, scores = self.config, self.scorer.score_form()
        kv = program.linear(self.kv_down, src, None, "latent")
        low = src if c.q_rank is None else program.linear(self.q_down, src, None, "low")
        q = program.linear(self.q_up, program.lower(self.q_norm, low), None, "queries")
        queries, keys = HeadColumns(q, c.nope_dim, c.heads, c.rope_dim), HeadColumns(kv, c.kv_rank, 1, c.rope_dim)
        for transform in self.qk:
            program.transform(transform, queries, keys)
        sizes = LatentDims(c.heads, c.kv_rank, c.nope_dim, c.rope_dim, c.value_dim)
        form = LatentForm(sizes, self.kv_norm, self.k_up, self.v_up)
        attended = program.attend_latent(q, kv, self.index, form, scores)
        return program.linear(self.out, attended, into, "out of attention")

    # ---- what others ask

    def activations(self) -> dict[str, ActivationColumns]:
        """Keys and values are made of the latent, which stands before its norm, with the rotary key behind it."""
        c, s = self.config, self.shape
        return {
            "q": ActivationColumns("q_up", 0, s.heads * s.key_dim, s.heads),
            "latent": ActivationColumns("kv_down", 0, c.kv_rank + c.rope_dim, 0),
            "heads": head_outputs(s),
        }

    def position_parts(self) -> PositionParts:
        return self.scorer.position_parts(self.qk)

    def queries_and_keys(self, x_BTD: Tensor) -> QueriesAndKeys:
        """In the expanded form, which has keys of every head."""
        q, latent, k_rot = self.project(x_BTD, self.low(x_BTD))
        k_nope = torch.einsum("bsr,hnr->bhsn", latent[:, 0], self.k_up)
        return QueriesAndKeys(q, torch.cat([k_nope, k_rot.expand(-1, self.config.heads, -1, -1)], -1))

    def score_width(self, queries: int, keys: int) -> int:
        c = self.config
        return c.kv_rank + c.rope_dim if self.absorbs(queries, keys) else self.shape.key_dim

    def operations(self, work: AttentionWork) -> dict[str, int]:
        c, tokens = self.config, work.size.tokens
        projected = sum(linear_operations(m, tokens) for m in (self.q_down, self.q_up, self.kv_down))
        out = linear_operations(self.out, tokens)
        if self.absorbs(work.size.queries, work.keys):
            absorbed = 2 * work.rows * c.nope_dim * c.kv_rank
            back = 2 * work.rows * c.kv_rank * c.value_dim
            return work.core(c.kv_rank) | {"projections": projected + absorbed, "output": out + back}
        expanded = 2 * work.size.batch * c.heads * work.keys * c.kv_rank * (c.nope_dim + c.value_dim)
        return work.core(c.value_dim) | {"projections": projected + expanded, "output": out}


ENTRY = Entry(
    "latent",
    Latent,
    "Latent (MLA)",
    "The cache keeps one small latent and one rotary key a token (DeepSeek-V2).",
    variants={
        "latent": lambda size: Latent(
            size.heads, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=size.norm, q_rank=16
        )
    },
    compared=False,  # it has sizes that a comparison does not say
)
