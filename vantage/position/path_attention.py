"""PaTH (Yang et al. 2025): every token between key and query reflects the key, by a direction and a share it chooses.

The score of query i and key j is q_i·H_i H_(i-1) … H_(j+1) k_j, with H_t = I - β_t w_t w_tᵀ, |w_t| = 1, β_t between 0
and 2; one w and one β for each key/value head. w comes from a map of low rank, a short convolution and SiLU.

The authors move every cached key with every new token, so that nothing kept stays valid. Here keys are kept as they
are, beside β and what w is made of, and the product is folded from the query's side: what was taken back, forked or
shared needs no care. The convolution is done on reading for the same reason: what it needs of earlier tokens is kept
with them, and there is no state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.angles import wide
from vantage.position.by_order import ByOrder, convolved
from vantage.spec.kept import KeptStream
from vantage.spec.masks import Causal, SameSegment, dense, visible
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import INIT_STD, BiasInputs, Dense, Parts, Shape
from vantage.spec.positions import Pair, Positions
from vantage.spec.registry import Entry, Refusal, parameter

NOT_CAUSAL = "PaTH reflects keys on the way to a later query and so needs causal attention: use another encoding here"
NOT_WHOLE = (
    "PaTH reflects whole keys, and latent attention keeps none: only {} of {} numbers of a key are the position's. Use "
    "grouped-query attention, or another encoding"
)
BETWEEN = Causal() & SameSegment()  # the tokens whose H a query folds in
BLOCK = 64  # keys folded at once: more of them are fewer steps, and a larger triangle to solve in each


@dataclass(frozen=True)
class PaTH:
    """``rank`` of the map that w comes from, ``taps`` of the convolution behind it."""

    rank: int = field(default=32, metadata=parameter("rank of the map that computes the directions", 1, 1024))
    taps: int = field(default=3, metadata=parameter("convolution taps: tokens that form a direction", 2, 16))

    shared = False  # no annotation: not a field, and so below
    every_key = True

    def __post_init__(self) -> None:
        if self.rank < 1 or self.taps < 2:
            raise BadInput(f"rank={self.rank}, taps={self.taps}: give a rank of 1 or more, and 2 taps or more")

    @property
    def before(self) -> int:
        """The oldest H that counts is that of the token behind a query's oldest key."""
        return self.taps - 2

    def describe(self) -> str:
        return "PaTH"

    def parts(self, *, causal: bool) -> Parts:
        if not causal:
            raise Refused(NOT_CAUSAL)
        return Parts(bias=self)

    def streams(self, shape: Shape) -> tuple[KeptStream, ...]:
        return KeptStream(shape.kv_heads, shape.key_dim), KeptStream(shape.kv_heads, 1, wide=True)

    def build(self, shape: Shape) -> nn.Module:
        if shape.rotary_dim != shape.key_dim:
            raise Refused(NOT_WHOLE.format(shape.rotary_dim, shape.key_dim))
        return HouseholderScores(self, shape)

    def operations(self, work: AttentionWork) -> int:
        """Of the maps, within each block of keys, and of the queries with each block; the triangular systems are left
        out, and so are filters, as no matrices are multiplied."""
        s, size, d = work.shape, work.size, work.shape.key_dim
        total = size.tokens * (s.width * (self.rank + s.kv_heads) + self.rank * s.kv_heads * d)
        for start in range(0, work.keys, BLOCK):
            width, folded = min(BLOCK, work.keys - start), min(size.queries, work.keys - start)
            total += size.batch * s.kv_heads * 2 * width**2 * d
            total += size.batch * s.heads * width * (size.queries * d + folded * (2 * d + width))
        return 2 * total


class HouseholderScores(nn.Module):
    def __init__(self, config: PaTH, shape: Shape):
        super().__init__()
        self.kv_heads = shape.kv_heads
        channels = shape.kv_heads * shape.key_dim
        self.down = nn.Linear(shape.width, config.rank, bias=False)
        self.up = nn.Linear(config.rank, channels, bias=False)
        self.filters = nn.Parameter(torch.empty(channels, config.taps))  # the last is that of the token itself
        self.share = nn.Linear(shape.width, shape.kv_heads)
        for linear in (self.down, self.up, self.share):
            nn.init.normal_(linear.weight, std=INIT_STD)
        nn.init.normal_(self.filters, std=config.taps**-0.5)
        nn.init.zeros_(self.share.bias)

    def keep(self, x_BTD: Tensor, pos: Positions) -> tuple[Tensor, ...]:
        """What w is made of, (B, G, T, d), and β, (B, G, T, 1)."""
        features = self.up(self.down(x_BTD)).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        share = 2 * torch.sigmoid(self.share(x_BTD).to(wide(x_BTD.dtype)))
        return features, share.transpose(1, 2)[..., None]

    def directions(self, features_BGSd: Tensor, pos: Positions) -> Tensor:
        """w, of length 1, from what was kept: convolved over the tokens of a document, which rise along each row."""
        filters = self.filters.to(features_BGSd.dtype).unflatten(0, (self.kv_heads, -1))
        return F.normalize(F.silu(convolved(features_BGSd, filters, pos)), dim=-1)

    def at(self, inputs: BiasInputs) -> Dense:
        return inputs.dense(self.whole)

    def whole(self, inputs: BiasInputs) -> Tensor:
        precise, by_order = wide(inputs.q.dtype), ByOrder.of(inputs.k_pos)
        k, features, share = (by_order.sort(x.to(precise), 2) for x in (inputs.k, *inputs.streams))
        q = inputs.q.to(precise).unflatten(1, (self.kv_heads, -1))  # (B, G, H / G, T, d)
        w = self.directions(features, by_order.pos)
        change = by_order.unsort(_change(q, k, w, share, inputs.q_pos, by_order.pos).flatten(1, 2), 3) * inputs.scale
        if inputs.softcap is None:
            return change
        plain = inputs.scale * (q @ inputs.k.to(precise)[:, :, None].transpose(-1, -2)).flatten(1, 2)
        before, after = (inputs.softcap * torch.tanh(scores / inputs.softcap) for scores in (plain, plain + change))
        return after - before


def _change(q: Tensor, k: Tensor, w: Tensor, share: Tensor, q_pos: Positions, k_pos: Positions) -> Tensor:
    """(B, G, H / G, T, S): q_i·(H_i … H_(j+1) k_j) - q_i·k_j, for keys whose order rises along each row.

    From the newest block of keys to the oldest, with queries as the newer blocks left them. Within a block the newest H
    acts first: it takes u w from a query, where u = β w·q is less what newer ones took in the direction of w. All of a
    block are the solution of one triangular system (the UT form of Joffrain et al. 2006), whatever the query.
    """
    pair = q_pos.against(k_pos)
    counts = dense(visible(BETWEEN, pair), pair)[:, :, None]  # (R, 1, 1, T, S)
    folded, changes = q, []
    for start in reversed(range(0, k.shape[2], BLOCK)):
        cut, first = slice(start, start + BLOCK), _queries_before(pair, start)
        k_b, w_b = k[:, :, cut], w[:, :, cut]
        if first == q.shape[-2]:  # no query has come to these keys: nothing is folded yet
            changes.append(q.new_zeros(*q.shape[:-1], k_b.shape[2]))
            continue
        share_b = torch.where(k_pos.filled[:, None, cut, None], share[:, :, cut], 0).transpose(-1, -2)  # (B, G, 1, C)
        newer = w_b @ w_b.transpose(-1, -2) * share_b  # (B, G, newer, older), of which the part below 1s is read
        if k_pos.segment is not None:
            segment = k_pos.segment[:, cut]
            newer = newer * (segment[:, None, :, None] == segment[:, None, None, :])
        some = folded[..., first:, :]
        along = some @ w_b[:, :, None].transpose(-1, -2) * share_b[:, :, None]
        along = torch.where(counts[..., first:, cut], along, 0)
        taken = torch.linalg.solve_triangular(
            newer, along.flatten(2, 3), upper=False, left=False, unitriangular=True
        ).view_as(along)
        inside = taken @ torch.tril(w_b @ k_b.transpose(-1, -2), -1)[:, :, None]
        outside = (folded - q) @ k_b[:, :, None].transpose(-1, -2)
        changes.append(outside - F.pad(inside, (0, 0, first, 0)))
        folded = folded - F.pad(taken @ w_b[:, :, None], (0, 0, first, 0))
    return torch.cat(changes[::-1], -1) if changes else q.new_zeros(*q.shape[:-1], 0)


def _queries_before(pair: Pair, column: int) -> int:
    """How many queries stand before this key and all behind it, as far as the host knows."""
    q, k = pair.q.known.first, pair.k.known.first
    return 0 if q is None or k is None else min(max(k + column - q, 0), pair.q.shape[1])


ENTRY = Entry(
    "path",
    PaTH,
    "PaTH",
    "Every token between key and query reflects the key in a direction it chooses (Yang et al. 2025).",
    variants={"path": lambda size: PaTH(rank=4)},
    refusals=(
        Refusal({"mask": ("prefix", "bidirectional")}, "PaTH reflects keys on the way"),
        Refusal({"attention": ("latent",)}, "PaTH reflects whole keys"),
        Refusal({"attention": ("shared-keys",)}, "keeps nothing: its bias cannot either"),
    ),
    randomised=False,  # it does not read positions
)
