"""Selective RoPE (Movahedi et al. 2025): every token turns pairs of dimensions on, by angles that it chooses itself.

RoPE turns by the same angle with every token. Here token t adds φ_t, a learned function of it and of the few tokens
before it, and query i meets key j turned by ω Σ φ_t over the tokens after j up to i. φ comes from a map of low rank of
the input, of which every head's share has length 1, and a short convolution; each key/value head has its own.

Keys are kept as they are, beside what φ is made of, as in PaTH: convolution and sums are done on reading, over the
tokens of a document. So padding, packed documents and tokens that are taken back need no care, and there is no state.
What the rotation changes is a bias on the scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.angles import frequencies, need_even, wide
from vantage.position.by_order import ByOrder, convolved
from vantage.position.cope import grouped_scores
from vantage.position.rope import join, rotate_by
from vantage.spec.kept import KeptStream
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import INIT_STD, BiasInputs, Dense, Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, Refusal, parameter

EPS = 1e-6  # under the root of a length
NOT_CAUSAL = (
    "Selective RoPE turns keys on the way to a later query and so needs causal attention: use another encoding here"
)
NOT_WHOLE = (
    "Selective RoPE turns whole keys, and latent attention keeps none: only {} of {} numbers of a key are the "
    "position's. Use grouped-query attention, or another encoding"
)


@dataclass(frozen=True)
class SelectiveRope:
    """``rank`` of the map that φ comes from, ``taps`` of the convolution behind it; ω_k = base^(-2k/d)."""

    rank: int = field(default=32, metadata=parameter("rank of the map that computes the angles", 1, 1024))
    taps: int = field(default=4, metadata=parameter("convolution taps: tokens that form an angle", 2, 16))
    base: float = field(default=500_000.0, metadata=parameter("the larger, the slower the last pairs turn", 2.0, 1e9))
    shares: int | None = None  # of the input, each of which has length 1; None: as many as heads

    shared = False  # no annotation: not a field, and so below
    every_key = True

    def __post_init__(self) -> None:
        if self.rank < 1 or self.taps < 2 or self.base <= 1:
            raise BadInput(
                f"rank={self.rank}, taps={self.taps}, base={self.base}: give a rank of 1 or more, 2 taps or more, and "
                "a base above 1"
            )

    @property
    def before(self) -> int:
        """The oldest angle that counts is that of the token behind a query's oldest key."""
        return self.taps - 2

    def describe(self) -> str:
        return f"selective RoPE, base {self.base:,.0f}"

    def parts(self, *, causal: bool) -> Parts:
        if not causal:
            raise Refused(NOT_CAUSAL)
        return Parts(bias=self)

    def of_heads(self, first: int, count: int, heads: int) -> SelectiveRope:
        """A process with some of the heads norms its input as all heads would."""
        return replace(self, shares=heads if self.shares is None else self.shares)

    def streams(self, shape: Shape) -> tuple[KeptStream, ...]:
        return (KeptStream(shape.kv_heads, shape.key_dim // 2),)

    def build(self, shape: Shape) -> nn.Module:
        if shape.rotary_dim != shape.key_dim:
            raise Refused(NOT_WHOLE.format(shape.rotary_dim, shape.key_dim))
        need_even(shape.key_dim, "Selective RoPE")
        shares = shape.heads if self.shares is None else self.shares
        if shares < 1 or shape.width % shares:
            raise BadInput(
                f"selective RoPE norms shares of the width, one a head, and {shares} do not divide {shape.width}"
            )
        return ChosenAngles(self, shape, shares)

    def operations(self, work: AttentionWork) -> int:
        """Of the maps, and of the scores, which are made as they would be and as they are."""
        s = work.shape
        maps = s.width * self.rank + self.rank * s.kv_heads * s.key_dim // 2
        return 2 * work.size.tokens * maps + 2 * 2 * work.pairs * s.key_dim


class ChosenAngles(nn.Module):
    def __init__(self, config: SelectiveRope, shape: Shape, shares: int):
        super().__init__()
        self.config, self.shares, self.kv_heads, self.key_dim = config, shares, shape.kv_heads, shape.key_dim
        channels = shape.kv_heads * shape.key_dim // 2
        self.down = nn.Linear(shape.width, config.rank, bias=False)
        self.up = nn.Linear(config.rank, channels, bias=False)
        self.filters = nn.Parameter(torch.empty(channels, config.taps))  # the last is that of the token itself
        for linear in (self.down, self.up):
            nn.init.normal_(linear.weight, std=INIT_STD)
        nn.init.normal_(self.filters, std=config.taps**-0.5)

    def keep(self, x_BTD: Tensor, pos: Positions) -> tuple[Tensor, ...]:
        """What φ is made of, (B, G, T, d / 2)."""
        parts = x_BTD.to(wide(x_BTD.dtype)).unflatten(-1, (self.shares, -1))
        normed = (parts * torch.rsqrt(parts.square().sum(-1, keepdim=True) + EPS)).flatten(2).to(x_BTD.dtype)
        return (self.up(self.down(normed)).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2),)

    def at(self, inputs: BiasInputs) -> Dense:
        return inputs.dense(self.whole)

    def whole(self, inputs: BiasInputs) -> Tensor:
        """What the rotation changes of each score."""
        precise, group = wide(inputs.q.dtype), inputs.q.shape[1] // self.kv_heads
        of_queries, of_keys = self.angles(inputs, precise)
        q, k = inputs.q.to(precise), inputs.k.to(precise)
        plain = inputs.scale * grouped_scores(q, k)
        turned_q = _turned(q, of_queries.repeat_interleave(group, 1))
        turned = inputs.scale * grouped_scores(turned_q, _turned(k, of_keys))
        if inputs.softcap is not None:
            plain, turned = (inputs.softcap * torch.tanh(scores / inputs.softcap) for scores in (plain, turned))
        return turned - plain

    def angles(self, inputs: BiasInputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """ω Σ φ of each query, (B, G, T, d / 2), and of each key, (B, G, S, d / 2). Only differences within a document
        mean anything."""
        by_order = ByOrder.of(inputs.k_pos)
        features = by_order.sort(inputs.streams[0].to(dtype), 2)
        filters = self.filters.to(dtype).unflatten(0, (self.kv_heads, -1))
        sums = convolved(features, filters, by_order.pos).cumsum(2)
        sums = sums * frequencies(self.key_dim, self.config.base, sums.device).to(dtype)
        # a query's own token is the last that it may see
        orders = (by_order.pos.order.contiguous(), inputs.q_pos.order.contiguous())
        last = torch.searchsorted(*orders, right=True) - 1
        index = last.clamp_min(0)[:, None, :, None].expand(-1, *sums.shape[1:2], -1, sums.shape[3])
        return sums.gather(2, index), by_order.unsort(sums, 2)


def _turned(x_BHTd: Tensor, angle_BHTk: Tensor) -> Tensor:
    cos, sin = angle_BHTk.cos(), angle_BHTk.sin()
    return rotate_by(x_BHTd, join(cos, cos, "halves"), join(-sin, sin, "halves"), "halves")


ENTRY = Entry(
    "selective-rope",
    SelectiveRope,
    "Selective RoPE",
    "RoPE by angles that the tokens between key and query choose themselves (Movahedi et al. 2025).",
    variants={"selective-rope": lambda size: SelectiveRope(rank=4)},
    refusals=(
        Refusal({"mask": ("prefix", "bidirectional")}, "Selective RoPE turns keys on the way"),
        Refusal({"attention": ("latent",)}, "Selective RoPE turns whole keys"),
        Refusal({"attention": ("shared-keys",)}, "keeps nothing: its bias cannot either"),
    ),
    randomised=False,  # it does not read positions
)
