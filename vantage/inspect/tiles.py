"""From an attention that ran to its weights, some queries at a time, whatever kernel ran.

Fast kernels never form the weights. Here they are formed again from the queries, keys, mask and biases that the kernel
was given, by the reference kernel's own functions. Only keys that some query of the tile sees are touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vantage.inspect.sites import Seen
from vantage.kernels.reference import grouped_matmul, masked_scores, normalise
from vantage.spec.masks import Everything, visible
from vantage.spec.parts import Dense, Need, Pointwise, Softmax
from vantage.spec.positions import Known, Pair, Place, Positions

CELLS = 2**20  # weights of a tile: small enough to stay in a core's cache
GAP = 64  # keys seen by all between two stretches that are not: fewer are not worth a stretch of their own


class Tile(NamedTuple):
    """The weights of some queries over the keys from ``low`` on that they see."""

    weights: Tensor  # (B, H', t, s)
    pair: Pair  # the positions of these queries and keys
    columns: Tensor  # (t,): which queries of the pass
    low: int  # the first key, as the view has them


@dataclass(frozen=True, eq=False)
class Cut(Pointwise):
    """Another bias, for some of its heads and queries."""

    inner: Pointwise
    heads: Tensor
    columns: Tensor

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return self.inner(b, self.heads[h], self.columns[i], q, k)


def tiles(seen: Seen, heads: Sequence[int], columns: Sequence[int], cells: int = CELLS) -> Iterator[Tile]:
    """The weights of these heads and queries, in tiles of about so many."""
    B, H, _, _ = seen.q.shape
    each = max(1, cells // max(1, B * len(heads) * seen.view.k.shape[2]))
    pick = torch.tensor(list(heads), device=seen.q.device)
    for start in range(0, len(columns), each):
        some = tuple(columns[start : start + each])
        yield _tile(seen, pick, len(heads) == H, some)


def output(seen: Seen, heads: Sequence[int], tile: Tile) -> Tensor:
    """(B, H', t, d_v): what these weights make of the values, to compare with what the kernel gave."""
    H, G, size = seen.q.shape[1], seen.view.v.shape[1], tile.weights.shape[-1]
    v = seen.view.v[:, [h * G // H for h in heads], tile.low : tile.low + size].to(tile.weights.dtype)
    out = grouped_matmul(tile.weights, v)
    if seen.need.value_bias is not None:
        out = out + seen.need.value_bias.at(tile.weights, tile.pair.q, tile.pair.k)
    return out


def _tile(seen: Seen, heads: Tensor, all_heads: bool, columns: tuple[int, ...]) -> Tile:
    at = _place(seen, columns)
    index = torch.tensor(columns, device=seen.q.device)
    whole = columns == tuple(range(columns[0], columns[0] + len(columns)))
    q = seen.q[:, :, columns[0] : columns[-1] + 1] if whole else seen.q[:, :, index]
    k = seen.view.k[:, :, at.low : at.high]
    if not all_heads:
        H, G = seen.q.shape[1], k.shape[1]
        q, k = q[:, heads], k[:, heads * G // H]
    wide = torch.promote_types(q.dtype, torch.float32)
    need = cut_need(seen.need, heads, index, slice(at.low, at.high))
    # a pair keeps the biases that were built for it: over all tiles they would be too many
    pair = Pair(at.pair.q, at.pair.k) if isinstance(need.bias, Pointwise) else at.pair
    scores = masked_scores(q.to(wide), k.to(wide), pair, replace(need, mask=Everything()))
    for low, high, hidden in at.hidden:  # of a causal tile only the last few keys are hidden from anyone
        scores[..., low:high].masked_fill_(hidden, float("-inf"))
    return Tile(_weights(scores, need, at.blind), pair, index, at.low)


def _weights(scores: Tensor, need: Need, blind: bool) -> Tensor:
    if need.normalise == Softmax() and need.sinks is None and not blind:
        return torch.softmax(scores, -1)  # the plain case in one pass
    sinks = None if need.sinks is None else need.sinks.to(scores.dtype)
    return normalise(scores, sinks, need.normalise)[0]


def cut_need(need: Need, heads: Tensor, columns: Tensor, keys: slice) -> Need:
    bias = need.bias
    if isinstance(bias, Dense):
        bias = Dense(bias.value[:, heads][:, :, columns][..., keys])
    elif bias is not None:
        bias = Cut(bias, heads, columns)
    return replace(need, bias=bias, sinks=None if need.sinks is None else need.sinks[heads])


class Placed(NamedTuple):
    """Some queries and the keys that any of them sees, worked out once for all layers with the same mask."""

    pair: Pair
    low: int
    high: int
    hidden: list[tuple[int, int, Tensor]]  # stretches of these keys where some are hidden: from, to, (R, 1, t, n)
    blind: bool  # some query sees nothing


def _place(seen: Seen, columns: tuple[int, ...]) -> Placed:
    def make() -> Placed:
        q, k = pick(seen.pair.q, columns), seen.pair.k
        both = Pair(q, k)
        mask = visible(seen.need.mask, both)
        if mask == Everything():
            return Placed(both, 0, k.shape[1], [], blind=False)
        shown = mask(*both.places())  # (R, 1, t, S)
        some = shown.flatten(0, 2).any(0).nonzero().flatten()
        low, high = (int(some[0]), int(some[-1]) + 1) if len(some) else (0, 1)
        shown = shown[..., low:high]
        partly = (~shown.flatten(0, 2).all(0)).nonzero().flatten().tolist()
        hidden = [(a, b, ~shown[..., a:b]) for a, b in _stretches(partly)]
        return Placed(Pair(q, _slice(k, low, high)), low, high, hidden, blind=not bool(shown.any(-1).all()))

    return seen.pair.once(("inspect", seen.need.mask, columns), make)


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """From, to (not included) of a rising list; small gaps are bridged."""
    found: list[tuple[int, int]] = []
    for n in numbers:
        if found and n - found[-1][1] < GAP:
            found[-1] = (found[-1][0], n + 1)
        else:
            found.append((n, n + 1))
    return found


def pick(pos: Positions, columns: tuple[int, ...]) -> Positions:
    """Some columns, in any order."""
    start = columns[0]
    if columns == tuple(range(start, start + len(columns))):
        return _slice(pos, start, start + len(columns))
    index = torch.tensor(columns, device=pos.device)
    order, segment = pos.order[:, index], None if pos.segment is None else pos.segment[:, index]
    return Positions(pos.pos[:, index], order, segment, _fewer(pos.known), pos.length)


def _slice(pos: Positions, low: int, high: int) -> Positions:
    if pos.known.first is not None or (low, high) == (0, pos.shape[1]):
        return pos if (low, high) == (0, pos.shape[1]) else pos.narrow(low, high - low)
    order, segment = pos.order[:, low:high], None if pos.segment is None else pos.segment[:, low:high]
    return Positions(pos.pos[:, low:high], order, segment, _fewer(pos.known), pos.length)


def _fewer(known: Known) -> Known:
    """What still holds of some of the places: bounds are bounds of fewer, too."""
    return replace(known, first=None, counts=None)
