"""Cross-attention: queries from one sequence, keys and values from another."""

from __future__ import annotations

from torch import Tensor, nn

from vantage.attention.scorer import Scorer, head_outputs, merge_heads
from vantage.spec.attention import ActivationColumns, Pieces, PositionParts
from vantage.spec.model import BuildContext, Scores
from vantage.spec.operations import AttentionWork, linear_operations
from vantage.spec.parts import Context, Shape, View
from vantage.spec.transforms import chain


class CrossAttention(nn.Module):
    """The encoder's output is projected once; after that the cache is only looked at."""

    crosses = True

    def __init__(self, shape: Shape, scores: Scores, context: BuildContext, *, bias: bool, out_bias: bool):
        super().__init__()
        self.index, self.shape = context.index, shape
        self.q = context.linear(shape.width, shape.heads * shape.key_dim, bias)
        self.kv = context.linear(shape.width, shape.kv_heads * (shape.key_dim + shape.value_dim), bias)
        self.out = context.linear(shape.heads * shape.value_dim, shape.width, out_bias)
        self.qk = nn.ModuleList(context.qk)  # pyright: ignore[reportArgumentType] (every transform is a module)
        self.scorer = Scorer(scores, shape, context)

    def encoder_view(self, ctx: Context) -> View:
        """The keys and values of the encoder's output: from the cache, or projected now."""
        cache = ctx.cross[self.index]
        if ctx.memory is None:
            return cache.view()
        s = self.shape
        B, S, _ = ctx.memory.hidden.shape
        k, v = self.kv(ctx.memory.hidden).split((s.kv_heads * s.key_dim, s.kv_heads * s.value_dim), dim=-1)
        k = k.view(B, S, s.kv_heads, s.key_dim).transpose(1, 2)
        v = v.view(B, S, s.kv_heads, s.value_dim).transpose(1, 2)
        return cache.append(ctx.memory.pos, chain(self.qk, "key", k, ctx.memory.pos), v)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        B, T, _ = x_BTD.shape
        q_raw = self.q(x_BTD).view(B, T, self.shape.heads, self.shape.key_dim).transpose(1, 2)
        q = chain(self.qk, "query", q_raw, ctx.pos)
        view = self.encoder_view(ctx)
        need = self.scorer.need(q_raw, q, view, ctx.pos, x_BTD)
        return self.out(merge_heads(ctx.attend("cross", self.index, q, view, need)))

    # ---- what others ask

    def projections(self) -> dict[str, Pieces]:
        s = self.shape
        return {"kv": (("k", s.kv_heads * s.key_dim), ("v", s.kv_heads * s.value_dim))}

    def activations(self) -> dict[str, ActivationColumns]:
        s = self.shape
        keys, values = s.kv_heads * s.key_dim, s.kv_heads * s.value_dim
        return {
            "q": ActivationColumns("q", 0, s.heads * s.key_dim, s.heads),
            "k": ActivationColumns("kv", 0, keys, s.kv_heads),
            "v": ActivationColumns("kv", keys, values, s.kv_heads),
            "heads": head_outputs(s),
        }

    def position_parts(self) -> PositionParts:
        return self.scorer.position_parts(self.qk)

    def score_width(self, queries: int, keys: int) -> int:
        return self.shape.key_dim

    def operations(self, work: AttentionWork) -> dict[str, int]:
        size = work.size
        source_tokens = size.batch * size.source if size.fresh else 0
        return work.core(self.shape.value_dim) | {
            "projections": linear_operations(self.q, size.tokens) + linear_operations(self.kv, source_tokens),
            "output": linear_operations(self.out, size.tokens),
        }
