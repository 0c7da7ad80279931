"""Keys that were chosen for each query, as columns: what an indexer gives, and the bias that it comes to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vantage.spec.dense import WHOLE
from vantage.spec.parts import Dense, Pointwise, materialise
from vantage.spec.positions import EMPTY, Pair
from vantage.spec.query_blocks import QueryBlockBias


@dataclass(frozen=True, eq=False)
class ChosenKeys:
    """Each query attends to these keys alone, the same for all heads; masks still hide what they hide.

    A kernel may read them and no others. To all other kernels it is a bias of -inf elsewhere, which is made for as many
    queries at once as they want.
    """

    columns: Tensor  # (B, T, K), of the view, no key twice; -1: none
    inner: Pointwise | Dense | None  # the bias beside it

    def bias(self, pair: Pair, heads: int, dtype: torch.dtype) -> Dense:
        dtype = torch.promote_types(dtype, torch.float32)
        return Dense(lambda cut: self._of_queries(cut, pair, heads, dtype), chosen=self)

    def _of_queries(self, cut: slice, pair: Pair, heads: int, dtype: torch.dtype) -> Tensor:
        columns, S = self.columns[:, cut], pair.k.shape[1]
        columns = torch.where(columns < 0, S, columns)  # the last column takes what is none
        hidden = torch.full((*columns.shape[:2], S + 1), float("-inf"), dtype=dtype, device=columns.device)
        hidden = hidden.scatter(-1, columns, 0.0)[:, None, :, :S]
        value = self._inner(cut, pair, heads, dtype)
        return (hidden if value is None else value + hidden).expand(-1, heads, -1, -1)

    def _inner(self, cut: slice, pair: Pair, heads: int, dtype: torch.dtype) -> Tensor | None:
        if isinstance(self.inner, Dense):
            return self.inner.of_queries(cut).to(dtype)
        if self.inner is None or cut == WHOLE:
            return materialise(self.inner, pair, heads, dtype)
        some = pair.q.narrow(cut.start, cut.stop - cut.start)
        return materialise(QueryBlockBias(self.inner, cut.start), Pair(some, pair.k), heads, dtype)


def near_columns(queries: Tensor, keys: Tensor, near: int, ahead: int = 0) -> Tensor:
    """(B, T, near + ahead): the columns of the keys less than ``near`` before a query, itself among them, and of those
    up to ``ahead`` behind it; -1 where there is none. Orders (B, T) and (B, S), keys in any arrangement."""
    order, column = keys.sort(dim=-1)
    offset = torch.arange(1 - near, ahead + 1, device=keys.device)
    last = torch.searchsorted(order, queries.contiguous(), right=True) - 1  # of the keys up to each query
    index = last[..., None] + offset
    inside = (index >= 0) & (index < keys.shape[1])
    index = index.clamp(0, max(keys.shape[1] - 1, 0)).flatten(1)
    key_order = order.gather(1, index).view(*queries.shape, -1)
    distance = queries[..., None] - key_order
    inside = inside & (key_order >= 0) & (distance < near) & (distance >= -ahead) & (queries[..., None] >= 0)
    return torch.where(inside, column.gather(1, index).view_as(key_order), EMPTY)
