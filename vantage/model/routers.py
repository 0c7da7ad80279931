"""Routers beyond the plain top k of ``experts.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.spec.operations import weights_of
from vantage.spec.parts import INIT_STD

SCORES: dict[str, Callable[[Tensor], Tensor]] = {"softmax": partial(torch.softmax, dim=-1), "sigmoid": torch.sigmoid}


@dataclass(frozen=True)
class GroupLimited:
    """The experts lie in ``groups``; a token may use the best ``kept`` of these, and there its k best experts
    (DeepSeek-V2 and V3, where a group is a machine). With one group: the k best of all.

    ``bias`` is V3's load balancing without a loss: a number for each expert that steers the choice and leaves the
    weights alone. No gradient reaches it.
    """

    k: int
    groups: int = 1
    kept: int = 1
    score: str = "softmax"
    best: int = 1  # a group is as good as the sum of so many of its best experts
    bias: bool = False
    renormalise: bool = False  # the chosen weights sum to 1, before the scale
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise BadInput(f"score={self.score!r}: use one of {', '.join(map(repr, SCORES))}")
        if not 1 <= self.kept <= self.groups:
            raise BadInput(f"{self.kept} of {self.groups} groups: keep from 1 to {self.groups}")

    def describe(self) -> str:
        of_groups = f" of {self.kept} of {self.groups} groups" if self.groups > 1 else ""
        return f"{self.k} by {self.score}{of_groups}"

    def build(self, width: int, experts: int) -> nn.Module:
        if experts % self.groups:
            raise BadInput(f"{experts} experts do not divide into {self.groups} groups: change one of the two")
        each = experts // self.groups
        if not 1 <= self.k <= self.kept * each:
            raise BadInput(f"k={self.k}: {self.kept} groups of {each} experts leave 1 to {self.kept * each} to choose")
        if not 1 <= self.best <= each:
            raise BadInput(f"best={self.best}: a group has {each} experts, so judge it by 1 to {each} of them")
        return _GroupLimited(self, width, experts)


class _GroupLimited(nn.Module):
    def __init__(self, config: GroupLimited, width: int, experts: int):
        super().__init__()
        self.config = config
        # not a ``Linear`` part: a rounded score changes the choice, so this map is never quantised
        self.weight = nn.Parameter(torch.empty(experts, width))
        nn.init.normal_(self.weight, std=INIT_STD)
        self.bias = nn.Parameter(torch.zeros(experts)) if config.bias else None

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        c, wide = self.config, torch.promote_types(x_ND.dtype, torch.float32)
        scores = SCORES[c.score](F.linear(x_ND.to(wide), self.weight.to(wide)))
        merit = scores.detach() if self.bias is None else scores.detach() + self.bias.detach()
        chosen = self.limit(merit).topk(c.k, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if c.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # sigmoids may all be 0
        return (weights * c.scale).to(x_ND.dtype), chosen

    def operations(self, tokens: int) -> int:
        return 2 * tokens * self.weight.numel()

    def weights_read(self, tokens: int) -> int:
        return weights_of(self)

    def limit(self, merit_NE: Tensor) -> Tensor:
        """-inf for the experts of groups that are not kept."""
        c = self.config
        merit_NGe = merit_NE.unflatten(-1, (c.groups, -1))
        groups_NG = merit_NGe.topk(c.best, dim=-1).values.sum(-1)
        kept_NG = torch.zeros_like(groups_NG, dtype=torch.bool)
        kept_NG.scatter_(-1, groups_NG.topk(c.kept, dim=-1).indices, True)
        return merit_NGe.masked_fill(~kept_NG[..., None], float("-inf")).flatten(-2)
