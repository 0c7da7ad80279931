"""Keys in the order of their tokens, wherever a cache keeps them: for rules that go over the tokens in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.spec.positions import EMPTY, Positions


@final
@dataclass(frozen=True, eq=False)
class ByOrder:
    """``pos`` rises along each row, empty places before all others."""

    pos: Positions
    columns: Tensor | None = None  # (B, S): where each of them is kept; None: they are kept in this order

    @staticmethod
    def of(kept: Positions) -> ByOrder:
        """Worked out once for these positions."""
        return kept.once("by order", lambda: _sorted(kept))

    def sort(self, x: Tensor, dim: int) -> Tensor:
        """From the arrangement of the cache into this one. Rows come first in ``x``."""
        return x if self.columns is None else _gather(x, self.columns, dim)

    def unsort(self, x: Tensor, dim: int) -> Tensor:
        """And back."""
        return x if self.columns is None else _gather(x, self.columns.argsort(dim=-1), dim)


def _sorted(kept: Positions) -> ByOrder:
    if kept.known.first is not None:
        return ByOrder(kept.without_memo())
    columns = kept.order.argsort(dim=-1)
    segment = None if kept.segment is None else kept.segment.gather(1, columns)
    return ByOrder(Positions(kept.pos.gather(1, columns), kept.order.gather(1, columns), segment), columns)


def _gather(x: Tensor, columns_BS: Tensor, dim: int) -> Tensor:
    shape = [1] * x.dim()
    shape[0], shape[dim] = columns_BS.shape
    return x.gather(dim, columns_BS.view(shape).expand_as(x))


def convolved(x_BGSd: Tensor, filters_Gdn: Tensor, pos: Positions) -> Tensor:
    """A causal convolution over the tokens of a document, which rise along each row; padding counts as 0. The last
    filter is that of the token itself."""
    x = torch.where(pos.filled[:, None, :, None], x_BGSd, 0)
    taps = filters_Gdn[:, None].flip(-1).unbind(-1)  # each (G, 1, d)
    mixed = x * taps[0]
    for back, tap in enumerate(taps[1:], 1):
        mixed = mixed + _earlier(x, pos.segment, back) * tap
    return mixed


def _earlier(x_BGSd: Tensor, segment_BS: Tensor | None, back: int) -> Tensor:
    """For each token what stands so many before it in its document; 0 before its beginning."""
    S = x_BGSd.shape[2]
    shifted = F.pad(x_BGSd, (0, 0, back, 0))[:, :, :S]
    if segment_BS is None:
        return shifted
    same = segment_BS == F.pad(segment_BS, (back, 0), value=EMPTY)[:, :S]
    return torch.where(same[:, None, :, None], shifted, 0)
