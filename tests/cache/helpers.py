"""A cache said again with lists: every token has an identity, and its key and value can be told from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch import Tensor

from tests.spec.helpers import check_facts
from vantage.cache import Contiguous, LayerCache, Ledger, ModelCache, Paged, PlainCodec, Pool, Ring, Store
from vantage.spec.parts import View
from vantage.spec.positions import EMPTY, Known, Positions

G, DK, DV = 2, 3, 2
F64 = torch.float64
MODULES = ("facts", "contiguous", "ring", "paged_state", "model_cache")


@contextlib.contextmanager
def device_like(on: bool = True) -> Iterator[None]:
    """As if the tensors were on a device that must not be read: the cache may use nothing but facts."""
    with contextlib.ExitStack() as stack:
        for name in MODULES if on else ():
            stack.enter_context(mock.patch(f"vantage.cache.{name}.on_host", return_value=False))
        yield


# ---- tokens


@dataclass(frozen=True)
class Token:
    order: int
    pos: float
    segment: int | None
    uid: int


def keys_of(uid_BT: Tensor, layer: int, width: int = DK) -> Tensor:
    """The keys (B, G, T, width) of tokens by their identity; padding (-1) has keys too, which nobody may see."""
    g, d = torch.arange(G)[:, None, None], torch.arange(width)
    return (uid_BT[:, None, :, None] * 100 + layer * 10 + g + d / 8).to(F64)


@dataclass
class Chunk:
    """What one pass brings: rows of tokens, None being an empty place."""

    rows: list[list[Token | None]]
    pos: Positions

    @property
    def uids(self) -> Tensor:
        return torch.tensor([[-1 if t is None else t.uid for t in row] for row in self.rows])

    def keys(self, layer: int) -> Tensor:
        return keys_of(self.uids, layer)

    def values(self, layer: int) -> Tensor:
        return -keys_of(self.uids, layer, DV)


def chunk_of(rows: list[list[Token | None]], known: str = "read", segmented: bool = False) -> Chunk:
    """``known``: "read" (all facts), "counts" (only those), "nothing"."""

    def table(name: str) -> Tensor:
        return torch.tensor([[EMPTY if t is None else getattr(t, name) for t in row] for row in rows])

    pos = Positions.of(table("pos"), order=table("order"), segment=table("segment") if segmented else None)
    facts = {"read": pos.known, "counts": Known(counts=pos.known.counts), "nothing": Known()}
    return Chunk(rows, Positions(pos.pos, pos.order, pos.segment, facts[known]))


# ---- the oracle


@dataclass
class Oracle:
    """Rows of tokens, in order."""

    rows: list[list[Token]] = field(default_factory=list)

    def next(self) -> list[int]:
        return [row[-1].order + 1 if row else 0 for row in self.rows]

    def append(self, chunk: Chunk) -> None:
        for mine, new in zip(self.rows, chunk.rows, strict=True):
            mine += [t for t in new if t is not None]

    def crop(self, to: Sequence[int]) -> None:
        self.rows = [[t for t in row if t.order < n] for row, n in zip(self.rows, to, strict=True)]

    def reorder(self, index: Sequence[int]) -> None:
        self.rows = [list(self.rows[i]) for i in index]

    def fork(self) -> Oracle:
        return Oracle([list(row) for row in self.rows])


def check_view(view: View, oracle: Oracle, layer: int, since: Sequence[int]) -> None:
    """All that is shown is true, and everything from order ``since[b]`` on is shown."""
    k, v, pos = view[:3]
    rows, width = pos.shape
    assert rows == len(oracle.rows)
    assert k.shape == (rows, G, width, DK)
    assert v.shape == (rows, G, width, DV)
    check_facts(pos)
    filled = pos.order >= 0
    empty = ~filled
    assert bool((pos.pos[empty] == EMPTY).all())
    assert pos.segment is None or bool((pos.segment[empty] == EMPTY).all())
    uids = torch.full((rows, width), -1)
    for b, tokens in enumerate(oracle.rows):
        truth = {t.order: t for t in tokens}
        orders = pos.order[b, filled[b]].tolist()
        assert len(set(orders)) == len(orders), f"row {b} shows something twice: {orders}"
        assert set(orders) <= set(truth), f"row {b} shows {orders}, of which it should hold {sorted(truth)}"
        missing = {o for o in truth if o >= since[b]} - set(orders)
        assert not missing, f"row {b} does not show {sorted(missing)}"
        assert pos.pos[b, filled[b]].tolist() == [truth[o].pos for o in orders]
        if pos.segment is not None:
            assert pos.segment[b, filled[b]].tolist() == [truth[o].segment for o in orders]
        else:
            assert all(truth[o].segment is None for o in orders)
        uids[b, filled[b]] = torch.tensor([truth[o].uid for o in orders], dtype=torch.int64)
    seen = filled[:, None, :, None]
    assert torch.equal(k.where(seen, 0.0), keys_of(uids, layer).where(seen, 0.0))
    assert torch.equal(v.where(seen, 0.0), -keys_of(uids, layer, DV).where(seen, 0.0))


# ---- caches


def model_cache(ledger: Ledger, layers: int = 2) -> ModelCache:
    codec = PlainCodec(G, DK, DV, F64)
    return ModelCache([LayerCache(ledger, Store(codec, ledger)) for _ in range(layers)])


def run(cache: ModelCache, chunk: Chunk) -> list[View]:
    """One pass through all layers."""
    with cache.step(chunk.pos):
        return [layer.append(chunk.pos, chunk.keys(i), chunk.values(i)) for i, layer in enumerate(cache.layers)]


class Stop(Exception):
    """What ends a pass that fails."""


def fail(cache: ModelCache, chunk: Chunk, after: int = 1) -> None:
    """One pass that fails after some layers have written."""
    with contextlib.suppress(Stop), cache.step(chunk.pos):
        for i, layer in enumerate(cache.layers[:after]):
            layer.append(chunk.pos, chunk.keys(i), chunk.values(i))
        raise Stop


def plain(batch: int, start: int, width: int, uid: int = 0) -> Chunk:
    """Rows that all run from ``start``, with facts by arithmetic."""
    rows = [[Token(start + t, start + t, None, uid + b * width + t) for t in range(width)] for b in range(batch)]
    return Chunk(rows, Positions.arange(batch, width, start))


def ragged(starts: Sequence[int], lengths: Sequence[int], uid: int = 0, pad: str = "right") -> Chunk:
    """Rows of unequal length."""
    width, rows = max(lengths), []
    for b, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        tokens = [Token(start + i, start + i, None, uid + b * width + i) for i in range(n)]
        holes = [None] * (width - n)
        rows.append(tokens + holes if pad == "right" else holes + tokens)
    return chunk_of(rows)


def contiguous(batch: int = 1, **options) -> ModelCache:
    return model_cache(Contiguous(batch, **options))


def ring(batch: int = 1, **options) -> ModelCache:
    return model_cache(Ring(batch, **options))


def paged(batch: int = 1, tokens: int | None = None, block: int = 4, **options) -> ModelCache:
    return model_cache(Paged(batch, Pool(tokens, block), **options))
