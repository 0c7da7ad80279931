"""Random masks and positions, and what they mean said again in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from vantage.spec.masks import (
    Causal,
    Chunked,
    Everything,
    Filled,
    Mask,
    Nothing,
    Prefix,
    SameSegment,
    Window,
)
from vantage.spec.positions import EMPTY, Positions


@dataclass(frozen=True)
class Token:
    """A real token: its order in the row, and the order at which its document starts."""

    order: int
    segment: int | None = None

    @property
    def rank(self) -> int:
        return self.order - (self.segment or 0)


Sees = Callable[[Token, Token], bool]


@dataclass(frozen=True)
class Meant:
    """A mask, and what it means for one query and one key that are both real."""

    mask: Mask
    sees: Sees


def same_document(q: Token, k: Token) -> bool:
    return q.segment is None or k.segment is None or q.segment == k.segment


def same_chunk(q: Token, k: Token, n: int) -> bool:
    return same_document(q, k) and q.rank // n == k.rank // n


def window(n: int) -> Meant:
    return Meant(Window(n), lambda q, k: -n < q.order - k.order < n)


def chunked(n: int) -> Meant:
    return Meant(Chunked(n), lambda q, k: same_chunk(q, k, n))


def prefix(n: int) -> Meant:
    return Meant(Prefix(n), lambda q, k: k.rank < n)


CAUSAL = Meant(Causal(), lambda q, k: k.order <= q.order)
EVERYTHING = Meant(Everything(), lambda q, k: True)
NOTHING = Meant(Nothing(), lambda q, k: False)
SAME_SEGMENT = Meant(SameSegment(), same_document)
FILLED = Meant(Filled(), lambda q, k: True)


def both(a: Meant, b: Meant) -> Meant:
    return Meant(a.mask & b.mask, lambda q, k: a.sees(q, k) and b.sees(q, k))


def either(a: Meant, b: Meant) -> Meant:
    return Meant(a.mask | b.mask, lambda q, k: a.sees(q, k) or b.sees(q, k))


def atoms(most: int = 6) -> st.SearchStrategy[Meant]:
    n = st.integers(1, most)
    fixed = st.sampled_from([CAUSAL, EVERYTHING, NOTHING, SAME_SEGMENT, FILLED])
    return st.one_of(fixed, n.map(window), n.map(chunked), n.map(prefix))


def masks(most: int = 6) -> st.SearchStrategy[Meant]:
    """Masks built from the algebra."""

    def grow(inner: st.SearchStrategy[Meant]) -> st.SearchStrategy[Meant]:
        return st.one_of(st.builds(both, inner, inner), st.builds(either, inner, inner))

    return st.recursive(atoms(most), grow, max_leaves=5)


def brute(meant: Meant, q: Positions, k: Positions) -> Tensor:
    """(B, T, S): who sees whom, one pair at a time; empty places neither see nor are seen."""
    (B, T), S = q.shape, k.shape[1]
    out = torch.zeros(B, T, S, dtype=torch.bool)
    for b in range(B):
        for i in range(T):
            for j in range(S):
                one, other = token(q, b, i), token(k, b, j)
                out[b, i, j] = one is not None and other is not None and meant.sees(one, other)
    return out


def token(pos: Positions, b: int, i: int) -> Token | None:
    order = int(pos.order[b, i])
    segment = None if pos.segment is None else int(pos.segment[b, i])
    return None if order == EMPTY else Token(order, segment)


@st.composite
def documents(draw: st.DrawFn, batch: int, high: int) -> Tensor | None:
    """(B, 3): where the documents of each row start; or none are spoken of."""
    if draw(st.booleans()):
        return None
    return torch.tensor([[0, *draw(st.lists(st.integers(0, high), min_size=2, max_size=2))] for _ in range(batch)])


@st.composite
def arrangements(draw: st.DrawFn, B: int, starts: Tensor | None, high: int) -> Positions:
    """Plain runs, equal rows, unequal rows, empty places, positions that are not the order, unknown facts."""
    T = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["run", "rows", "scattered", "same"]))
    if kind == "run" and starts is None:
        pos = Positions.arange(B, T, draw(st.integers(0, high)))
    else:
        pos = draw(_tables(kind, B, T, starts, high))
    if draw(st.sampled_from([True, False, False, False])):  # as on an accelerator: nothing is known
        return Positions(pos.pos, pos.order, pos.segment)
    return pos


@st.composite
def _tables(draw: st.DrawFn, kind: str, B: int, T: int, starts: Tensor | None, high: int) -> Positions:
    def row() -> list[int]:
        if kind == "rows":
            n, start = draw(st.integers(0, T)), draw(st.integers(0, high))
            run = list(range(start, start + n))
            gap = [EMPTY] * (T - n)
            return gap + run if draw(st.booleans()) else run + gap
        return draw(st.lists(st.integers(-1, high), min_size=T, max_size=T))

    first = row()
    order = torch.tensor([first if kind == "same" or b == 0 else row() for b in range(B)])
    pos, segment = order, None
    if draw(st.booleans()):  # positions that are not the order
        pos = torch.where(order >= 0, 3 * order + draw(st.integers(0, 4)), EMPTY)
    if starts is not None:
        begun = torch.where(starts[:, None] <= order[..., None], starts[:, None], 0)
        segment = torch.where(order >= 0, begun.amax(-1), EMPTY)
    return Positions.of(pos, order=order, segment=segment)


@st.composite
def positions(draw: st.DrawFn, high: int = 14) -> Positions:
    batch = draw(st.integers(1, 3))
    return draw(arrangements(batch, draw(documents(batch, high)), high))


@st.composite
def pairs(draw: st.DrawFn, high: int = 14) -> tuple[Positions, Positions]:
    """Queries and keys of the same rows."""
    batch = draw(st.integers(1, 3))
    starts = draw(documents(batch, high))
    q = draw(arrangements(batch, starts, high))
    return q, q if draw(st.booleans()) else draw(arrangements(batch, starts, high))


def check_facts(pos: Positions) -> None:
    """Every fact that is claimed is true."""
    known, filled = pos.known, pos.filled
    B, T = pos.shape
    if known.first is not None:
        run = torch.arange(known.first, known.first + T).expand(B, T)
        assert torch.equal(pos.order, run)
        assert torch.equal(pos.pos, run)
        assert pos.segment is None
        assert known.same_rows
        assert not known.empty
    if known.runs:
        run = pos.order[:, :1] + torch.arange(T)
        assert torch.equal(pos.order, run)
        assert torch.equal(pos.pos, run)
        assert filled.all()
    for bounds, values in ((known.order, pos.order[filled]), (known.pos, pos.pos[filled])):
        if bounds is not None and values.numel():
            assert bounds[0] <= values.min()
            assert values.max() <= bounds[1]
    if known.counts is not None:
        assert known.counts == tuple(filled.sum(1).tolist())
    if not known.empty:
        assert filled.all()
    if known.same_rows:
        assert pos.segment is None
        assert (pos.order == pos.order[:1]).all()
        assert (pos.pos == pos.pos[:1]).all()
