"""What a wrong key or value is instead: rounded, another's, encoded elsewhere, or never written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.conformance.fault import Fault
from vantage.conformance.probe import gap
from vantage.conformance.trace import declared_length
from vantage.errors import Refused
from vantage.model import Model
from vantage.spec.attention import SplitsScores, attentions
from vantage.spec.positions import Positions
from vantage.spec.transforms import chain

Token = tuple[int, int]  # row, place in the row
NARROW = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


@final
@dataclass(frozen=True, eq=False)
class KeySearch:
    """The keys and values of a full pass, by token, to look a wrong one up in."""

    model: Model
    layer: int
    where: str
    known: dict[Token, tuple[Tensor, Tensor]]
    inputs: dict[Token, Tensor]  # of the layer's attention

    def place_of(self, token: Token, wrong: Tensor, side: str, relative: float) -> int | None:
        """The position at which this token would get this query or key; ``None``: at none, or nobody can tell."""
        attention = next(iter(attentions(self.model.blocks[self.layer])), None)
        if not isinstance(attention, SplitsScores):
            return None
        if token not in self.inputs:
            return None
        limit = self.model.max_positions
        n = 2 * (max(place for _, place in self.known) + 2)
        n = n if limit is None else min(n, limit)
        x = self.inputs[token].expand(1, n, -1)
        try:
            raw = attention.queries_and_keys(x)
        except Refused:  # it reads another layer's keys
            return None
        where = Positions.arange(1, n, device=x.device).declare(declared_length(self.model))
        parts: Any = attention.position_parts().qk
        turned = chain(parts, side, raw.q if side == "query" else raw.k, where)
        if turned.shape[1] != wrong.shape[0] or turned.shape[-1] != wrong.shape[-1]:
            return None
        scale = max(float(turned.abs().max()), 1e-6)
        same = [p for p in range(n) if gap(turned[0, :, p], wrong) <= relative * scale]
        return same[0] if len(same) == 1 else None


def name_wrong_keys(
    search: KeySearch,
    token: Token,
    keys: list[tuple[int, Tensor, Tensor]],
    values: list[tuple[int, Tensor, Tensor]],
    cached: bool,
    relative: float,
) -> Fault | None:
    """``keys`` and ``values``: (place, right, wrong) of all that the token sees."""
    for what, pairs in (("keys", keys), ("values", values)):
        scale = max((float(right.abs().max()) for _, right, _ in pairs), default=0.0)
        wrong = [(place, a, b) for place, a, b in pairs if gap(a, b) > relative * max(scale, 1e-6)]
        if wrong:
            return _named(search, token, what, wrong, cached, relative * max(scale, 1e-6), relative)
    return None


def _named(
    search: KeySearch,
    token: Token,
    what: str,
    wrong: list[tuple[int, Tensor, Tensor]],
    cached: bool,
    near: float,
    relative: float,
) -> Fault:
    row, now = token
    place, right, other = wrong[0]
    off = max(gap(a, b) for _, a, b in wrong)
    held = "in the cache" if cached else "in this pass"
    shows = f"{len(wrong)} of the {what} that it sees are off, by {off:.1e} at most, the first at position {place}"
    if (dtype := _rounded(wrong)) is not None:
        return Fault(
            f"{what} are kept in a lower dtype",
            search.where,
            f"{shows}; rounded to {dtype} they are the same",
            "the dtype of the cache's buffers",
        )
    if all(not bool(b.any()) for _, _, b in wrong):
        return Fault(
            f"{what} {held} were never written", search.where, f"{shows}; they are all 0", "where the cache writes"
        )
    which = 0 if what == "keys" else 1
    donors = [{t for t, known in search.known.items() if gap(known[which], b) <= near} for _, _, b in wrong]
    if all({t for t in same if t[0] != row and t[1] == p} for same, (p, _, _) in zip(donors, wrong, strict=True)):
        others = sorted({t[0] for same in donors for t in same if t[0] != row})
        return Fault(
            "rows share a cache",
            search.where,
            f"{shows}; they are those of row {', '.join(map(str, others))}",
            "the row in which the cache writes and reads",
        )
    if donors[0]:
        whose = sorted(donors[0])[0]
        theirs = f"position {whose[1]}" if whose[0] == row else f"position {whose[1]} of row {whose[0]}"
        return Fault(
            "the cache overwrites an entry",
            search.where,
            f"{shows}; at {place} stands the entry of {theirs}",
            "where it puts new entries",
        )
    if what == "keys" and (at := search.place_of((row, place), other, "key", relative)) is not None:
        return _wrong_place(search, place, now, at, shows, wrong, cached)
    if _far(right, other):
        return Fault(
            f"{what} {held} are not those that were written",
            search.where,
            shows,
            "what the cache writes, and what it reads",
        )
    return Fault(f"{what} {held} are rounded or noisy", search.where, shows, "the codec of the cache")


def _wrong_place(
    search: KeySearch, place: int, now: int, at: int, shows: str, wrong: list[tuple[int, Tensor, Tensor]], cached: bool
) -> Fault:
    old = place < now and cached
    shows = f"{shows}; it is encoded at position {at}"
    if at == 2 * place and place and old and len(wrong) > 1:
        name = "keys are rotated twice: once when written, and again when read from the cache"
        return Fault(name, search.where, shows, "what happens to keys after cache.append returns them")
    if abs(at - place) == 1 and place > 1:
        return Fault(
            "keys are encoded one position off",
            search.where,
            f"{shows}, one off",
            "where the next position of a cached step comes from",
        )
    return Fault(
        "keys are encoded at a wrong position",
        search.where,
        shows,
        "key() of the q/k transforms, and the positions it is given",
    )


def _rounded(wrong: list[tuple[int, Tensor, Tensor]]) -> str | None:
    for dtype in NARROW:
        if all(gap(right.to(dtype).to(right.dtype), other) <= 4e-3 * gap(right, other) for _, right, other in wrong):
            return str(dtype).removeprefix("torch.")
    return None


def _far(right: Tensor, other: Tensor) -> bool:
    return gap(right, other) > 0.05 * float(right.abs().max())
