"""Shaw et al. 2018: learned vectors for the clipped distance j - i, added to the keys and to the values.

Score: scale · q_i·(k_j + a_clip(j-i)). Output: sum of weights · (v_j + c_clip(j-i)). No tensor with an entry
per query, key and dimension is formed: there are only 2n + 1 distances.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import need_whole
from vantage.spec.forms import QueryDistances, RowTable, ValueTable
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import BiasInputs, Parts, Pointwise, Shape
from vantage.spec.positions import Place, Positions
from vantage.spec.registry import Entry, Refusal, parameter


@dataclass(frozen=True)
class Shaw:
    """Distances beyond ``max_distance`` on either side are as that one. ``values``: the value term as well."""

    max_distance: int = field(default=16, metadata=parameter("larger distances are clipped to this", 1, 512))
    values: bool = field(default=True, metadata=parameter("also add a term to the values"))

    def __post_init__(self) -> None:
        if self.max_distance < 1:
            raise BadInput(f"max_distance={self.max_distance}: use 1 or more")

    def parts(self, *, causal: bool) -> Parts:
        value_bias = ShawValues(self.max_distance) if self.values else None
        return Parts(bias=ShawKeys(self.max_distance), value_bias=value_bias)


@dataclass(frozen=True)
class ShawKeys:
    """The key term, with a table per layer that all heads share."""

    max_distance: int

    shared = False  # no annotation: not a field

    def build(self, shape: Shape) -> nn.Module:
        return KeyDistances(self.max_distance, shape.key_dim)

    def operations(self, work: AttentionWork) -> int:
        return 2 * work.rows * work.shape.key_dim * (2 * self.max_distance + 1)


@dataclass(frozen=True)
class ShawValues:
    """The value term, with a table per layer that all heads share."""

    max_distance: int

    shared = False  # no annotation: not a field

    def build(self, shape: Shape) -> nn.Module:
        return ValueDistances(self.max_distance, shape.value_dim)

    def operations(self, work: AttentionWork) -> int:
        return 2 * work.rows * work.shape.value_dim * (2 * self.max_distance + 1)


@dataclass(frozen=True, eq=False)
class ShawBias(Pointwise):
    """What each query has to say to each distance, read at j - i."""

    by_distance: Tensor  # (B, H, T, 2n + 1)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        n = self.by_distance.shape[-1] // 2
        return self.by_distance[b, h, i, (k.pos - q.pos).clamp(-n, n) + n]

    def form(self) -> RowTable:
        return RowTable(self.by_distance.flip(-1), first=-(self.by_distance.shape[-1] // 2))


class KeyDistances(nn.Module):
    """scale · q_i·a_clip(j-i)."""

    def __init__(self, max_distance: int, key_dim: int):
        super().__init__()
        self.table = _table(max_distance, key_dim)

    def at(self, inputs: BiasInputs) -> ShawBias:
        need_whole(inputs.q_pos, "Shaw's table")
        need_whole(inputs.k_pos, "Shaw's table")
        by_token = inputs.q_raw.transpose(1, 2) @ self.table.T  # heads of a token lie side by side: no copy is made
        return ShawBias(inputs.scale * by_token.transpose(1, 2))

    def query_form(self) -> QueryDistances:
        return QueryDistances(self.looking_back, last=len(self.table) // 2)

    def looking_back(self, n: int) -> Tensor:
        """(1, n, d): the vectors of so many distances i - j, from 0 on."""
        back = self.table[: len(self.table) // 2 + 1].flip(0)
        return back[torch.arange(n, device=back.device).clamp_max(len(back) - 1)][None]


class ValueDistances(nn.Module):
    """Sum over j of weights_ij · c_clip(j-i): the weights are first summed by distance."""

    def __init__(self, max_distance: int, value_dim: int):
        super().__init__()
        self.table = _table(max_distance, value_dim)

    def form(self) -> ValueTable:
        return ValueTable(self.table.flip(0), first=-(self.table.shape[0] // 2))

    def at(self, weights_BHTS: Tensor, q_pos: Positions, k_pos: Positions) -> Tensor:
        need_whole(q_pos, "Shaw's table")
        need_whole(k_pos, "Shaw's table")
        q, k = q_pos.against(k_pos).places()
        n = self.table.shape[0] // 2
        distance = (k.pos - q.pos).clamp(-n, n) + n
        by_distance = weights_BHTS.new_zeros(*weights_BHTS.shape[:-1], 2 * n + 1)
        by_distance = by_distance.scatter_add(-1, distance.expand_as(weights_BHTS), weights_BHTS)
        return by_distance @ self.table.to(weights_BHTS.dtype)


def _table(max_distance: int, dim: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * max_distance + 1, dim)))


ENTRY = Entry(
    "shaw",
    Shaw,
    "Shaw",
    "Learned vectors for the clipped distance, added to keys and values (Shaw et al. 2018).",
    variants={"shaw": lambda size: Shaw(max_distance=4)},
    refusals=(Refusal({"kernel": ("sdpa", "flex")}, "a value bias needs the weights"),),
)
