"""A kernel that shows scores and weights, and lets them be replaced: the reference kernel, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.kernels.reference import grouped_matmul, masked_scores, normalise
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair, Positions

HIDDEN = float("-inf")  # the score of a key that a query does not see
Replace = Callable[[str, Tensor, Tensor], Tensor | None]  # "scores" or "weights", (B, H, T, keys), (B, T): orders


@final
class ShowingKernel:
    """Computes what the reference kernel does, in its order, so an edit of nothing gives the same bits."""

    name = "reference"

    def __init__(self, heads: int, replace: Replace):
        self._heads, self._replace = heads, replace

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        wide = torch.promote_types(q_BHTd.dtype, torch.float32)
        q, k, v = q_BHTd.to(wide), view.k.to(wide), view.v.to(wide)
        masked = masked_scores(q, k, pair, need)
        scores = self._shown("scores", masked, masked, pair, HIDDEN)
        sinks = None if need.sinks is None else need.sinks.to(wide)
        weights, lse = normalise(scores, sinks, need.normalise, pair)
        weights = self._shown("weights", weights, masked, pair, 0.0)
        used = F.dropout(weights, need.dropout) if need.dropout else weights
        out = grouped_matmul(used, v)
        if need.value_bias is not None:
            out = out + need.value_bias.at(used, pair.q, pair.k)
        return Attended(out.to(q_BHTd.dtype), weights if need.weights else None, lse if need.lse else None)

    def _shown(self, name: str, values: Tensor, masked: Tensor, pair: Pair, hidden: float) -> Tensor:
        """Hand them over with keys in their order, all heads of a row together; take them back as the kernel has them.

        What the mask hides stays hidden, whatever the edit: a cache may have let go of it.
        """
        per_row = self._heads // values.shape[1]  # above 1 where key/value heads are rows of the batch
        shown = by_order(values, pair.k, hidden)
        together = shown.reshape(-1, self._heads, *shown.shape[2:])
        queries = pair.q.order.expand(len(values), -1)[::per_row]
        edited = self._replace(name, together, queries)
        if edited is None:
            return values
        edited = edited.reshape(shown.shape)
        edited = edited if shown is values else _as_kept(edited, pair.k)
        return edited.masked_fill(masked == HIDDEN, hidden)


def by_order(values_BHTS: Tensor, keys: Positions, empty: float) -> Tensor:
    """The last dimension by the order of the keys, wherever a cache keeps them; ``empty`` where there is none."""
    if keys.known.first == 0:
        return values_BHTS
    width = 1 + max(0, int(keys.order.max()))
    target = values_BHTS.new_full((*values_BHTS.shape[:-1], width + 1), empty)
    index = torch.where(keys.order < 0, width, keys.order)[:, None, None].expand_as(values_BHTS)
    return target.scatter(-1, index, values_BHTS)[..., :width]


def _as_kept(by_order_BHTW: Tensor, keys: Positions) -> Tensor:
    """The other way round; anything where there is no key."""
    index = keys.order.clamp_min(0)[:, None, None].expand(*by_order_BHTW.shape[:-1], -1)
    return by_order_BHTW.gather(-1, index)
