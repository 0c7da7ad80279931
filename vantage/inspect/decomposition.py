"""Scores in parts, as data that answers questions and draws itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.figures.html import page_table


class Term(NamedTuple):
    """One part of every score. ``of``: "content", "position", or "neither" (a softcap)."""

    name: str
    of: str
    value: Tensor  # (heads, queries, keys)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Decomposition:
    """The scores of one layer before the softmax, and parts that add up to them."""

    kind: str
    layer: int
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    score: Tensor  # (heads, queries, keys), -inf where a query does not see a key
    seen: Tensor  # (heads, queries, keys) bool
    terms: list[Term]
    frequency: Tensor | None = None  # (bands,) radians a position
    band_content: Tensor | None = None  # (bands, heads, queries, keys): what each band would give unturned
    band_position: Tensor | None = None  # … and what turning adds to it
    query_labels: tuple[str, ...] = ()
    key_labels: tuple[str, ...] = ()

    def named(self, queries: Sequence[str], keys: Sequence[str]) -> Decomposition:
        return replace(self, query_labels=tuple(queries), key_labels=tuple(keys))

    def part(self, of: str) -> Tensor:
        """(heads, queries, keys): the sum of all terms of "content", "position" or "neither"."""
        if of not in ("content", "position", "neither"):
            raise BadInput(f'part({of!r}): there are "content", "position" and "neither"')
        return sum((term.value for term in self.terms if term.of == of), torch.zeros_like(self.terms[0].value))

    @property
    def error(self) -> float:
        """How far the parts are from adding up, at most, relative to the largest score."""
        total = sum((term.value for term in self.terms), torch.zeros_like(self.terms[0].value))
        seen = self.score[self.seen]
        return float((total[self.seen] - seen).abs().max() / seen.abs().max().clamp_min(1.0)) if len(seen) else 0.0

    def share(self) -> Tensor:
        """(heads,): of what makes a query prefer one key over another, the share that position says.

        Softmax only sees differences between keys, so a part counts by its variance over the keys that a query sees:
        var(position) / (var(position) + var(content)), the mean over queries that see at least two.
        """
        spread = [_variance(self.part(of), self.seen) for of in ("position", "content")]
        many = self.seen.sum(-1) > 1
        both = spread[0] + spread[1]
        share = torch.where(both > 0, spread[0] / both.clamp_min(torch.finfo(both.dtype).tiny), 0.0)
        return (share * many).sum(-1) / many.sum(-1).clamp_min(1)

    def band_share(self) -> Tensor | None:
        """(bands, heads): the variance over keys that each band's turning adds, as a share of all bands'."""
        if self.band_position is None:
            return None
        spread = torch.stack([_variance(band, self.seen).mean(-1) for band in self.band_position])
        return spread / spread.sum(0).clamp_min(torch.finfo(spread.dtype).tiny)

    def to_dict(self) -> dict[str, Any]:
        band_share = self.band_share()
        return {
            "kind": self.kind,
            "layer": self.layer,
            "heads": list(self.heads),
            "queries": list(self.queries),
            "error": self.error,
            "position_share": self.share().tolist(),
            "frequency": None if self.frequency is None else self.frequency.tolist(),
            "band_share": None if band_share is None else band_share.T.tolist(),
            "score": _finite(self.score),
            "parts": [{"name": t.name, "of": t.of, "value": _finite(t.value, self.seen)} for t in self.terms],
        }

    def rows(self) -> list[list[Any]]:
        """For a table: each head, its share of position, and the spread of each part."""
        spread = [_variance(term.value, self.seen).mean(-1).sqrt() for term in self.terms]
        share = self.share()
        return [[head, float(share[i]), *(float(s[i]) for s in spread)] for i, head in enumerate(self.heads)]

    @property
    def header(self) -> list[str]:
        return ["head", "share of position", *(f"{term.name} (spread)" for term in self.terms)]

    @property
    def summary(self) -> str:
        """What was decomposed, in a line."""
        names = ", ".join(term.name for term in self.terms)
        return (
            f"scores of {self.kind} attention, layer {self.layer}: {len(self.heads)} heads, {len(self.queries)} "
            f"queries; parts: {names} (their sum is off by at most {self.error:.1e})"
        )

    def __repr__(self) -> str:
        return f"Decomposition({self.summary})"

    def _repr_html_(self) -> str:
        from vantage.inspect.plots import plot_decomposition

        return page_table(repr(self), self.header, self.rows(), plot_decomposition(self, self.heads[0]))


def _variance(x: Tensor, seen: Tensor) -> Tensor:
    """(…, queries): over the keys that are seen."""
    n = seen.sum(-1, keepdim=True).clamp_min(1)
    x = x.masked_fill(~seen, 0.0)
    mean = x.sum(-1, keepdim=True) / n
    return ((x - mean).masked_fill(~seen, 0.0) ** 2).sum(-1) / n[..., 0]


def _finite(x: Tensor, seen: Tensor | None = None) -> list[Any]:
    """As lists; what is not seen is ``None``."""
    seen = x > float("-inf") if seen is None else seen
    return [
        [[v if s else None for v, s in zip(*pair, strict=True)] for pair in zip(q, m, strict=True)]
        for q, m in zip(x.tolist(), seen.tolist(), strict=True)
    ]
