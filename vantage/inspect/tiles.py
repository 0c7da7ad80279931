"""From an attention that ran to its weights, some queries at a time, whatever kernel ran.

Fast kernels never form the weights. Here they are formed again from the queries, keys, mask and biases that the kernel
was given, by the reference kernel's own functions. Only keys that some query of the tile sees are touched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vantage.inspect.sites import KernelCall
from vantage.kernels.native import native
from vantage.kernels.reference import grouped_matmul, masked_scores, normalise
from vantage.spec.masks import Everything, visible
from vantage.spec.normalisers import MadeForPass, Softmax
from vantage.spec.parts import Dense, Need, Pointwise
from vantage.spec.positions import Known, Pair, Place, Positions

CELLS = 2**20  # weights of a tile: small enough to stay in a core's cache
MIN_GAP = 64  # keys seen by all between two stretches that are not: fewer are not worth a stretch of their own


@dataclass(frozen=True, eq=False)
class Tile:
    """Some queries over the keys from ``low`` on that they see."""

    # (B, H', t, s): what is normalised, -inf where a key is hidden, still to be multiplied by the factor. Of all heads
    # where the normaliser looks at them together
    scores: Tensor
    factor: float
    need: Need
    blind: bool  # some query sees nothing
    pair: Pair  # the positions of these queries and keys
    columns: Tensor  # (t,): which queries of the pass
    low: int  # the first key, as the view has them
    heads: Tensor | None = None  # those that are wanted of these scores; None: all

    @functools.cached_property
    def weights(self) -> Tensor:
        """(B, H', t, s)"""
        scores = self.scores if self.factor == 1.0 else self.scores * self.factor
        if self._plain:
            return torch.softmax(scores, -1)  # the plain case in one pass
        sinks = None if self.need.sinks is None else self.need.sinks.to(scores.dtype)
        weights = normalise(scores, sinks, self.need.normalise, self.pair)[0]
        return weights if self.heads is None else weights[:, self.heads]

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest weights of each query, falling, and where they stand among the keys of the tile; fewer if
        there are not so many keys."""
        k = min(k, self.scores.shape[-1])
        on_cpu = self.scores.device.type == "cpu" and self.scores.dtype == torch.float32
        if self._plain and on_cpu and (library := native()) is not None:
            values, index = library.top(self.scores.contiguous(), k, self.factor)
            return values, index.long()
        return largest(self.weights, k)

    @property
    def _plain(self) -> bool:
        return self.need.normalise == Softmax() and self.need.sinks is None and not self.blind


@dataclass(frozen=True, eq=False)
class SelectedBias(Pointwise):
    """Another bias, for some of its heads and queries, and for its keys from ``low`` on."""

    inner: Pointwise
    heads: Tensor
    columns: Tensor
    low: int

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        assert k.column is not None
        return self.inner(b, self.heads[h], self.columns[i], q, k._replace(column=k.column + self.low))


def tiles(call: KernelCall, heads: Sequence[int], columns: Sequence[int], cells: int = CELLS) -> Iterator[Tile]:
    """The weights of these heads and queries, in tiles of about so many."""
    B, H, _, _ = call.q.shape
    pick = torch.tensor(list(heads), device=call.q.device)
    together = isinstance(call.need.normalise, MadeForPass)
    formed = torch.arange(H, device=call.q.device) if together else pick
    each = max(1, cells // max(1, B * len(formed) * call.view.k.shape[2]))
    for start in range(0, len(columns), each):
        tile = _tile(call, formed, len(formed) == H, tuple(columns[start : start + each]))
        yield replace(tile, heads=pick) if together else tile


def output(call: KernelCall, heads: Sequence[int], tile: Tile) -> Tensor:
    """(B, H', t, d_v): what these weights make of the values, to compare with what the kernel gave."""
    H, G, size = call.q.shape[1], call.view.v.shape[1], tile.scores.shape[-1]
    v = call.view.v[:, [h * G // H for h in heads], tile.low : tile.low + size].to(tile.weights.dtype)
    out = grouped_matmul(tile.weights, v)
    if call.need.value_bias is not None:
        out = out + call.need.value_bias.at(tile.weights, tile.pair.q, tile.pair.k)
    return out


def _tile(call: KernelCall, heads: Tensor, all_heads: bool, columns: tuple[int, ...]) -> Tile:
    at = _visible_keys(call, columns)
    index = torch.tensor(columns, device=call.q.device)
    whole = columns == tuple(range(columns[0], columns[0] + len(columns)))
    q = call.q[:, :, columns[0] : columns[-1] + 1] if whole else call.q[:, :, index]
    k = call.view.k[:, :, at.low : at.high]
    if not all_heads:
        H, G = call.q.shape[1], k.shape[1]
        q, k = q[:, heads], k[:, heads * G // H]
    wide = torch.promote_types(q.dtype, torch.float32)
    need = cut_need(call.need, heads, index, slice(at.low, at.high))
    # a pair keeps the biases that were built for it: over all tiles they would be too many
    pair = Pair(at.pair.q, at.pair.k) if isinstance(need.bias, Pointwise) else at.pair
    if need.bias is None and need.softcap is None and need.scale > 0:
        scores, factor = grouped_matmul(q.to(wide), k.to(wide).transpose(-1, -2)), need.scale  # one pass less
    else:
        scores, factor = masked_scores(q.to(wide), k.to(wide), pair, replace(need, mask=Everything())), 1.0
    for low, high, hidden in at.hidden:  # of a causal tile only the last few keys are hidden from anyone
        scores[..., low:high].masked_fill_(hidden, float("-inf"))
    return Tile(scores, factor, need, at.blind, pair, index, at.low)


def largest(weights: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they stand, as torch.topk.

    Long rows are first cut into groups: the k largest lie in the k groups with the largest maxima, so only those
    are searched. At 4,096 entries and k = 32 this takes half of the time.
    """
    size = weights.shape[-1]
    k = min(k, size)
    members = int((size / k) ** 0.5)
    if members < 3:
        return weights.topk(k, -1)
    groups = size // members
    front = weights[..., : groups * members].unflatten(-1, (members, groups))  # group g: g, g + groups, …
    best = front.amax(-2).topk(k, -1, sorted=False).indices
    index = (best[..., None] + groups * torch.arange(members, device=weights.device)).flatten(-2)
    tail = torch.arange(groups * members, size, device=weights.device).expand(*index.shape[:-1], -1)
    index = torch.cat((index, tail), -1)
    values, at = weights.gather(-1, index).topk(k, -1)
    return values, index.gather(-1, at)


def cut_need(need: Need, heads: Tensor, columns: Tensor, keys: slice) -> Need:
    """The same for some heads, queries and keys. A normaliser that is ``MadeForPass`` still needs all heads."""
    bias = need.bias
    if isinstance(bias, Dense):
        bias = Dense(bias.value[:, heads][:, :, columns][..., keys])
    elif bias is not None:
        bias = SelectedBias(bias, heads, columns, keys.start or 0)
    sinks = need.sinks
    if sinks is not None:
        sinks = sinks[heads] if sinks.dim() == 1 else sinks[:, heads][:, :, columns]
    normalise = need.normalise.of_queries(columns) if isinstance(need.normalise, MadeForPass) else need.normalise
    return replace(need, bias=bias, sinks=sinks, normalise=normalise)


class VisibleKeys(NamedTuple):
    """Some queries and the keys that any of them sees, worked out once for all layers with the same mask."""

    pair: Pair
    low: int
    high: int
    hidden: list[tuple[int, int, Tensor]]  # stretches of these keys where some are hidden: from, to, (R, 1, t, n)
    blind: bool  # some query sees nothing


def _visible_keys(call: KernelCall, columns: tuple[int, ...]) -> VisibleKeys:
    def make() -> VisibleKeys:
        q, k = pick(call.pair.q, columns), call.pair.k
        both = Pair(q, k)
        mask = visible(call.need.mask, both)
        if mask == Everything():
            return VisibleKeys(both, 0, k.shape[1], [], blind=False)
        shown = mask(*both.places())  # (R, 1, t, S)
        some = shown.flatten(0, 2).any(0).nonzero().flatten()
        low, high = (int(some[0]), int(some[-1]) + 1) if len(some) else (0, 1)
        shown = shown[..., low:high]
        partly = (~shown.flatten(0, 2).all(0)).nonzero().flatten().tolist()
        hidden = [(a, b, ~shown[..., a:b]) for a, b in _stretches(partly)]
        return VisibleKeys(Pair(q, _slice(k, low, high)), low, high, hidden, blind=not bool(shown.any(-1).all()))

    return call.pair.once(("inspect", call.need.mask, columns), make)


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """From, to (not included) of a rising list; small gaps are bridged."""
    stretches: list[tuple[int, int]] = []
    for n in numbers:
        if stretches and n - stretches[-1][1] < MIN_GAP:
            stretches[-1] = (stretches[-1][0], n + 1)
        else:
            stretches.append((n, n + 1))
    return stretches


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
    return replace(known, first=None, runs=False, rising=False, counts=None)
