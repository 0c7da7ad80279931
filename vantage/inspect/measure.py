"""What each head does, measured on a real text (A17): where its weight lies, and how much of that position explains.

The text is read twice over, one copy after the other: what a head does with the first copy is what it does with any
text; whether it looks for what came after the last time (induction) shows in the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from vantage.inspect.sites import KernelCall
from vantage.inspect.tiles import Tile, tiles
from vantage.spec.masks import visible

FIT_ROUNDS = 2  # rounds of fitting: more change nothing that is shown
LOCAL = 8  # keys that count as near: less than so many away
MEASURES = (
    "previous",
    "first",
    "itself",
    "same",
    "induction",
    "local",
    "positional",
    "entropy",
    "spread",
    "distance",
    "last",
    "diagonal",
    "nowhere",
)


@final
@dataclass(eq=False)
class Sums:
    """Means over the rows of many tiles."""

    totals: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value_Ht: Tensor, counted_t: Tensor) -> None:
        """Rows that are not counted do not exist for this measure: a first token has no previous one."""
        total = (value_Ht * counted_t).double().sum(-1)
        self.totals[name] = self.totals[name] + total if name in self.totals else total
        self.counts[name] = self.counts.get(name, 0) + int(counted_t.sum())

    def mean(self, name: str, heads: int) -> Tensor:
        """(H,), nan where no row counted."""
        if not self.counts.get(name):
            return torch.full((heads,), float("nan"), dtype=torch.float64)
        return self.totals[name] / self.counts[name]


def measure(call: KernelCall, tokens: Tensor | None, repeat: int | None) -> dict[str, Tensor]:
    """(H,) for each of ``MEASURES``. ``tokens`` (T,) are those of queries and keys, ``None`` for cross-attention;
    ``repeat``: from which query on the text is a repetition."""
    heads = call.site.heads
    pattern = _pattern(call)
    sums = Sums()
    for tile in _all(call):
        shown = _shown(call, tile)
        _weigh(sums, tile, shown, tokens, repeat)
        _explain(sums, tile, shown, pattern)
    return {name: sums.mean(name, heads) for name in MEASURES}


def _all(call: KernelCall) -> Iterator[Tile]:
    return tiles(call, range(call.site.heads), range(call.q.shape[2]))


def _shown(call: KernelCall, tile: Tile) -> Tensor:
    """(t, s): who may see whom. Not read off the weights, which may be 0 by rounding."""
    return visible(call.need.mask, tile.pair)(*tile.pair.places())[0, 0]


def _weigh(sums: Sums, tile: Tile, shown_ts: Tensor, tokens: Tensor | None, repeat: int | None) -> None:
    w = tile.weights[0]  # (H, t, s)
    q, k = tile.pair.q.order[0][:, None], tile.pair.k.order[0][None]  # (t, 1), (1, s)
    every = q[:, 0] >= 0
    whole = w.sum(-1)
    entropy = torch.special.entr(w).sum(-1)
    sums.add("entropy", entropy, every)
    sums.add("spread", entropy / shown_ts.sum(-1).clamp_min(2).log(), every & (q[:, 0] > 0))
    sums.add("nowhere", (1 - whole).clamp_min(0), every)
    sums.add("first", (w * (k == 0)).sum(-1), q[:, 0] > 0)
    if tokens is None:
        _across(sums, w, q, k, every)
        return
    sums.add("distance", (w * (q - k).abs()).sum(-1), every)
    sums.add("previous", (w * (k == q - 1)).sum(-1), q[:, 0] > 0)
    sums.add("itself", (w * (k == q)).sum(-1), q[:, 0] > 0)
    sums.add("local", (w * ((q - k).abs() < LOCAL)).sum(-1), q[:, 0] >= 2 * LOCAL)
    query_token, key_token = tokens[q[:, 0]][:, None], tokens[k[0]][None]
    same = (query_token == key_token) & (k != q) & (k > 0) & shown_ts  # the first token is looked at whatever it is
    fresh = q[:, 0] < (repeat if repeat is not None else len(tokens))
    sums.add("same", (w * same).sum(-1), same.any(-1) & fresh)
    before = tokens[(k[0] - 1).clamp_min(0)][None]
    after = (before == query_token) & (k > 1) & (k - 1 != q) & shown_ts
    after = after if repeat is None else after & (k == q - repeat + 1)  # what followed this very token last time
    again = q[:, 0] >= (0 if repeat is None else repeat)
    sums.add("induction", (w * after).sum(-1), after.any(-1) & again)


def _across(sums: Sums, w: Tensor, q: Tensor, k: Tensor, every: Tensor) -> None:
    """Cross-attention: the other end, and how nearly it follows along."""
    sums.add("last", (w * (k == k.max())).sum(-1), every)
    along = (k.float() - q.float() * (k.max() + 1) / (q.max() + 1).clamp_min(1)).abs() <= 1.5
    sums.add("diagonal", (w * along).sum(-1), every)


# ---- how much of it position explains


class Pattern(NamedTuple):
    """The mean weight on the first key, and how the others are preferred by their offset from the query."""

    first: Tensor  # (H,)
    offset: Tensor  # (H, 2·n - 1), index 0 is offset -(n - 1); a row's guess is this, brought to the row's sum
    n: int


def _pattern(call: KernelCall) -> Pattern:
    """Rows see unequally many keys, so preferences are fitted to the sums over rows and over offsets in turn
    (iterative proportional fitting): a head that looks everywhere alike then comes out as one."""
    n, heads = max(call.q.shape[2], call.view.k.shape[2]), call.site.heads
    wide = {"dtype": torch.float64, "device": call.q.device}
    first, total = torch.zeros(heads, **wide), torch.zeros(heads, 2 * n - 1, **wide)
    shown = torch.zeros(call.q.shape[2], call.view.k.shape[2], dtype=torch.bool, device=call.q.device)
    rest: list[Tensor] = []
    for tile in _all(call):
        w, q, k = tile.weights[0].double(), tile.pair.q.order[0][:, None], tile.pair.k.order[0][None]
        others = w * (k > 0)
        total.index_add_(1, (k - q + n - 1).flatten(), others.flatten(1))
        first += (w * (k == 0)).sum(-1).sum(-1)
        rest.append(others.sum(-1))
        shown[tile.columns, tile.low : tile.low + w.shape[-1]] = _shown(call, tile) & (k > 0)
    offset = call.pair.k.order[0][None] - call.pair.q.order[0][:, None] + n - 1
    count = torch.zeros(2 * n - 1, **wide).index_add_(0, offset[shown], torch.ones(int(shown.sum()), **wide))
    pattern = total / count.clamp_min(1)
    for _ in range(FIT_ROUNDS):
        pattern = _fitted(pattern, total, torch.cat(rest, 1), offset, shown)
    return Pattern(first / call.q.shape[2], pattern, n)


def _fitted(pattern: Tensor, total: Tensor, rest_Ht: Tensor, offset_ts: Tensor, shown_ts: Tensor) -> Tensor:
    """Preferences whose guesses have each offset's sum, if rows had theirs before."""
    weight_sum = torch.zeros_like(pattern)
    for rows in torch.arange(len(offset_ts), device=offset_ts.device).split(64):
        guess = pattern[:, offset_ts[rows]] * shown_ts[rows]
        factor = rest_Ht[:, rows] / guess.sum(-1).clamp_min(1e-12)
        cells = factor[..., None] * shown_ts[rows]
        weight_sum.index_add_(1, offset_ts[rows].flatten(), cells.flatten(1))
    return torch.where(weight_sum > 0, total / weight_sum.clamp_min(1e-12), 0.0)


def _explain(sums: Sums, tile: Tile, shown_ts: Tensor, pattern: Pattern) -> None:
    """Overlap of each row with what the offset alone would have it do: 1 is a head that looks at nothing but where."""
    w, q, k = tile.weights[0].double(), tile.pair.q.order[0][:, None], tile.pair.k.order[0][None]
    guess = pattern.offset[:, k - q + pattern.n - 1] * (k > 0) * shown_ts
    others = guess.sum(-1, keepdim=True)
    first = pattern.first[:, None, None] * (k == 0)
    rest = w.sum(-1, keepdim=True) - first.sum(-1, keepdim=True)
    guess = first + guess / others.clamp_min(1e-12) * rest.clamp_min(0) * (others > 0)
    sums.add("positional", torch.minimum(guess, w).sum(-1), q[:, 0] >= 2 * LOCAL)
