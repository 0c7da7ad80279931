"""Rows of unequal length in one batch, padded on the left or on the right; documents side by side in a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from vantage.conformance.probe import Probe, gap
from vantage.spec.positions import Positions


@final
@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length in one batch."""

    tokens: Tensor  # padding holds tokens too: it must not matter which
    positions: Tensor
    alone: tuple[Tensor, ...]  # what each row gives alone, (n, V)

    @staticmethod
    def of(p: Probe, *, left: bool, more: int = 0) -> Ragged:
        """``more``: the rows alone are longer by so many tokens, which are given later."""
        width = p.width - more
        sizes = (width, max(1, width - 5), max(1, width - 2))
        tokens, positions = p.changed(p.tokens[:, :width], 3), p.positions(p.tokens[:, :width]).clone()
        for b, n in enumerate(sizes):
            start = width - n if left else 0
            tokens[b, start : start + n] = p.tokens[b, :n]
            positions[b] -= start
            positions[b, start + n :] = -1
        alone = tuple(p.full(p.tokens[b : b + 1, : n + more])[0] for b, n in enumerate(sizes))
        return Ragged(tokens, positions.clamp_min(-1), alone)

    @property
    def sizes(self) -> list[int]:
        return (self.positions >= 0).sum(1).tolist()

    def off(self, logits: Tensor, later: Tensor | None = None) -> float:
        """The largest difference from the rows alone, padding left out."""
        errors = []
        for b, alone in enumerate(self.alone):
            got = logits[b][self.positions[b] >= 0]
            errors.append(gap(got if later is None else torch.cat([got, later[b]]), alone))
        return max(errors)


@final
@dataclass(frozen=True)
class Documents:
    """The rows of a probe, each cut into one or two documents."""

    where: Positions
    first_row: Positions
    tokens: tuple[tuple[int, int, Tensor], ...]  # row, first place, and tokens (1, n) of each document

    @staticmethod
    def of(p: Probe) -> Documents:
        third = max(1, p.width // 3)
        lengths = [[third, p.width - third], [p.width], [p.width - third - 1, third + 1]]
        tokens = []
        for b, row in enumerate(lengths):
            for start, n in zip([0, *row], row, strict=False):
                tokens.append((b, start, p.tokens[b : b + 1, start : start + n]))
        return Documents(Positions.packed(lengths), Positions.packed(lengths[:1]), tuple(tokens))

    def off(self, p: Probe, logits: Tensor) -> float:
        """The largest difference from the documents alone."""
        return max(
            gap(logits[b, start : start + document.shape[1]], p.full(document)[0]) for b, start, document in self.tokens
        )
