"""Keys in the order of their tokens, wherever a cache keeps them: for rules that go over the tokens in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from vantage.spec.positions import Positions


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
