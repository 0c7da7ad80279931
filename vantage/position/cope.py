"""CoPE (Golovneva et al. 2024): positions that count what the query cares about.

g_ij = σ(scale·q_i·k_j); p_ij = sum of g_ik over the keys k from j to i; the score gains q_i·e[p_ij], e learned
and interpolated between whole positions. The count goes by ``order``, over what the query may see.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.angles import wide
from vantage.position.by_order import ByOrder
from vantage.position.relative import runs
from vantage.spec.forms import CountTable, QueryCounts
from vantage.spec.masks import Causal, SameSegment, dense, visible
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import BiasInputs, Dense, Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, Refusal, parameter

COUNTED = Causal() & SameSegment()


@dataclass(frozen=True)
class CoPE:
    """Counts stop at ``max_positions`` - 1."""

    max_positions: int = field(default=64, metadata=parameter("largest contextual position", 2, 1024))

    shared = False  # no annotation: not a field, and so below
    every_key = True

    def __post_init__(self) -> None:
        if self.max_positions < 2:
            raise BadInput(f"max_positions={self.max_positions}: use 2 or more, or there is nothing to tell apart")

    def parts(self, *, causal: bool) -> Parts:
        if not causal:
            raise Refused("CoPE counts back from the query and so needs causal attention: use another encoding here")
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return CountedPositions(self.max_positions, shape.key_dim)

    def operations(self, work: AttentionWork) -> int:
        return 2 * (work.pairs * work.score_width + work.rows * work.shape.key_dim * self.max_positions)


class CountedPositions(nn.Module):
    """The table e, shared by all heads of a layer; zero at first, as in the authors' code."""

    def __init__(self, max_positions: int, key_dim: int):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(max_positions, key_dim))

    def counts(self, q: Tensor, k: Tensor, q_pos: Positions, k_pos: Positions, scale: float) -> Tensor:
        pair = q_pos.against(k_pos)
        gates = torch.sigmoid(scale * grouped_scores(q, k)) * dense(visible(COUNTED, pair), pair)
        return _sums_from_newest(gates, k_pos).clamp_max(self.table.shape[0] - 1)

    def at(self, inputs: BiasInputs) -> Dense:
        if not runs(inputs.q_pos, inputs.k_pos):
            return inputs.dense(self.whole)
        # heads of a token lie side by side: seen so, the product takes no copy of the queries
        by_token = inputs.q_raw.transpose(1, 2)
        return inputs.dense(self.whole, lambda: CountTable((by_token @ self.table.T).transpose(1, 2), inputs.scale))

    def query_form(self) -> QueryCounts:
        return QueryCounts(self.table)

    def whole(self, inputs: BiasInputs) -> Tensor:
        count = self.counts(inputs.q, inputs.k, inputs.q_pos, inputs.k_pos, inputs.scale)
        below = count.detach().floor().long()
        above = (below + 1).clamp_max(self.table.shape[0] - 1)
        by_count = (inputs.q_raw @ self.table.T).to(count.dtype)  # (B, H, T, max_positions)
        return torch.lerp(by_count.gather(-1, below), by_count.gather(-1, above), count - below)


def grouped_scores(q_BHTd: Tensor, k_BGSd: Tensor) -> Tensor:
    """(B, H, T, S): query head h meets key head h // (H / G)."""
    B, H, T, d = q_BHTd.shape
    G, S = k_BGSd.shape[1:3]
    scores = q_BHTd.reshape(B, G, H // G * T, d) @ k_BGSd.transpose(-1, -2)
    return scores.reshape(B, H, T, S).to(wide(q_BHTd.dtype))


def _sums_from_newest(gates_BHTS: Tensor, k_pos: Positions) -> Tensor:
    """For every key the sum over it and all keys of a higher order, wherever they are kept."""
    by_order = ByOrder.of(k_pos)
    return by_order.unsort(by_order.sort(gates_BHTS, 3).flip(-1).cumsum(-1).flip(-1), 3)


ENTRY = Entry(
    "cope",
    CoPE,
    "CoPE",
    "Positions count the keys that the query cares about (Golovneva et al. 2024).",
    variants={"cope": lambda size: CoPE(max_positions=6)},
    refusals=(Refusal({"mask": ("prefix", "bidirectional")}, "causal"),),
    randomised=False,
)
