"""Randomised positions (Ruoss et al. 2023): training tokens stand at random, ascending positions below ``high``.

A model trained so has met every position up to ``high`` and reads longer inputs than it was trained on.
Masks are not touched: they read ``order``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.spec.parts import Encoding, Parts
from vantage.spec.positions import EMPTY, Positions
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class Randomised:
    """Any encoding with randomised positions: in training they are drawn below ``high``, in ascending order.

    ``generator=None``: torch's own random numbers.
    """

    inner: Encoding
    high: int = 2048
    generator: torch.Generator | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.high < 1:
            raise BadInput(f"high={self.high}: use 1 or more, and at least the longest row")

    def parts(self, *, causal: bool) -> Parts:
        inner = self.inner.parts(causal=causal)
        if inner.sampler is not None:
            raise BadInput("these positions are randomised already: wrap the encoding once")
        return replace(inner, sampler=self)

    def draw(self, pos: Positions) -> Positions:
        """New positions for a batch: distinct and ascending with ``order`` in each row, or in each of its documents."""
        drawn = torch.full_like(pos.order, EMPTY)
        for places_BT, longest in _documents(pos):
            if longest > self.high:
                raise BadInput(f"{longest} tokens cannot have distinct positions below {self.high}: raise high")
            drawn = torch.where(places_BT, self._ascending(places_BT, pos.order), drawn)
        known = replace(pos.known, first=None, pos=(0, self.high - 1), same_rows=False, documents=None, runs=False)
        return replace(pos, pos=drawn, known=known, memo={})

    def _ascending(self, places_BT: Tensor, order_BT: Tensor) -> Tensor:
        """(B, T): at the given places of each row a random choice of positions, ascending with the order."""
        device = places_BT.device if self.generator is None else self.generator.device
        noise = torch.rand(len(places_BT), self.high, generator=self.generator, device=device).to(places_BT.device)
        chosen = noise.argsort(dim=1).argsort(dim=1) < places_BT.sum(1, keepdim=True)
        number = torch.arange(self.high, device=places_BT.device)
        ascending = torch.where(chosen, number, number + self.high).sort(dim=1).values  # the chosen come first
        last = torch.iinfo(order_BT.dtype).max
        rank = order_BT.masked_fill(~places_BT, last).argsort(dim=1).argsort(dim=1)
        return ascending.gather(1, rank.clamp_max(self.high - 1))


def _documents(pos: Positions) -> Iterator[tuple[Tensor, int]]:
    """The places (B, T) of each document of every row, and how many tokens the longest can have."""
    if pos.segment is None:
        counts = pos.known.counts
        yield pos.filled, pos.shape[1] if counts is None else max(counts, default=0)
        return
    for label in pos.segment[pos.filled].unique().tolist():  # reads back from the device, once per training batch
        places = pos.filled & (pos.segment == label)
        yield places, int(places.sum(1).max())


ENTRY = Entry(
    "randomised",
    Randomised,
    "Randomised",
    "In training, tokens get random ascending positions (Ruoss et al. 2023).",
    variants={},
)
