"""A dilated mask: a query sees itself and every n-th token before it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vantage.errors import BadInput
from vantage.spec.masks import Causal, Mask, SameSegment
from vantage.spec.positions import Place, Positions
from vantage.spec.registry import Entry, Refusal


@dataclass(frozen=True)
class Dilated(Mask):
    """Keys whose distance is a multiple of n, on both sides."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise BadInput(f"n={self.n}: use 1 (every token) or more")

    def __call__(self, q: Place, k: Place) -> Tensor:
        return (q.order - k.order) % self.n == 0

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return self

    def reach(self) -> int | None:
        return None

    def settled(self, start: int) -> bool:
        return start == 0


ENTRY = Entry(
    "dilated",
    Dilated,
    "Dilated",
    "A query sees itself and every n-th token.",
    variants={"dilated": lambda size: Causal() & Dilated(2) & SameSegment()},
    refusals=(Refusal({"cache": ("ring",)}, "a ring keeps a window"),),
)
