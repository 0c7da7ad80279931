"""Where every token stands: the one thing that encodings, masks, caches and kernels agree on.

A part knows positions, never slots. Padding, packed documents, chunked prefill, windows and
rolled-back drafts are all said here, as data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vantage.errors import BadInput

EMPTY = -1


class Place(NamedTuple):
    """Tensors that broadcast against each other: what a mask or a pointwise bias is a function of."""

    pos: Tensor
    order: Tensor
    segment: Tensor | None
    column: Tensor | None = None  # which token of the pass, or which key of the view; for pointwise biases alone

    @property
    def rank(self) -> Tensor:
        """In the document."""
        return self.order if self.segment is None else self.order - self.segment


@dataclass(frozen=True)
class Known:
    """What the host knows without asking the device. ``None`` means: not known.

    These facts only ever choose a faster path to the same result. No device
    synchronisation is made to learn them.
    """

    first: int | None = None  # every row is first, first + 1, …, in pos and order alike, no place empty
    order: tuple[int, int] | None = None  # lowest and highest order of the filled places
    pos: tuple[int, int] | None = None  # lowest and highest pos of the filled places
    counts: tuple[int, ...] | None = None  # filled places in each row
    empty: bool = True  # False: no place is empty
    same_rows: bool = False  # every row holds the same
    documents: tuple[int, int] | None = (
        None  # how many in all rows, and tokens of the longest; see ``packed_documents``
    )
    limit: int | None = None  # no pos is higher, and perhaps none is as high; where ``pos`` is not known
    runs: bool = False  # every row runs on by one from a start of its own, in pos and order alike, no place empty
    rising: bool = False  # the same of the order alone, while pos never falls

    @staticmethod
    def run(first: int, rows: int, width: int) -> Known:
        """The facts of rows that all run from ``first``."""
        bounds = (first, first + width - 1) if width else None
        return Known(first, bounds, bounds, (width,) * rows, empty=False, same_rows=True, runs=True, rising=True)

    @staticmethod
    def read(pos_BT: Tensor, order_BT: Tensor) -> Known:
        """Read the facts off tensors in host memory; off any other device nothing is read."""
        if pos_BT.device.type != "cpu" or pos_BT.numel() == 0:
            return Known()
        filled = order_BT >= 0
        counts = tuple(int(n) for n in filled.sum(1))
        if not any(counts):
            return Known(counts=counts)
        low, high = int(order_BT[filled].min()), int(order_BT[filled].max())
        bounds = (int(pos_BT[filled].min().floor()), int(pos_BT[filled].max().ceil()))
        same = bool((order_BT == order_BT[:1]).all() and (pos_BT == pos_BT[:1]).all())
        empty = not bool(filled.all())
        steps = order_BT[:, :1] + torch.arange(order_BT.shape[1])
        runs_on = not empty and bool((order_BT == steps).all())
        runs, rising = (runs_on and bool(x.all()) for x in (pos_BT == steps, pos_BT.diff() >= 0))
        first = low if runs and same else None
        return Known(first, (low, high), bounds, counts, empty, same, runs=runs, rising=rising)


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of a batch of tokens, (B, T).

    ``pos`` is what encodings read. ``order`` is what masks read: the rank of a token in its row,
    equal to ``pos`` unless positions are randomised, stretched, or restart with each packed
    document. ``segment`` says which document a token belongs to, by the order of that document's
    first token; so ``order - segment`` is the rank in the document. An empty place (padding) is
    -1 everywhere and is never seen by anyone.
    """

    pos: Tensor
    order: Tensor
    segment: Tensor | None = None
    known: Known = field(default_factory=Known)  # an object here would stop torch 2.11's compiler
    length: int | None = None  # the length declared for rules whose frequencies depend on it
    axes: Tensor | None = None  # (A, B, T), where tokens stand on several axes; ``pos`` is the highest of them
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)  # results worked out once per forward pass

    # ---- making them

    @staticmethod
    def arange(batch: int, width: int, start: int = 0, device: torch.device | str | None = None) -> Positions:
        """Every row runs start, start + 1, …"""
        row = torch.arange(start, start + width, device=device).expand(batch, width)
        return Positions(row, row, known=Known.run(start, batch, width))

    @staticmethod
    def rows(
        lengths: Sequence[int],
        starts: Sequence[int] | None = None,
        *,
        width: int | None = None,
        pad: str = "right",
        device: torch.device | str | None = None,
    ) -> Positions:
        """Rows of unequal length, padded on the right or on the left; row b runs from starts[b]."""
        if pad not in ("left", "right"):
            raise BadInput(f"pad={pad!r}: use 'left' or 'right'")
        starts = [0] * len(lengths) if starts is None else list(starts)
        if len(starts) != len(lengths):
            raise BadInput(f"{len(starts)} starts for {len(lengths)} rows: give one start a row")
        width = max(lengths, default=0) if width is None else width
        if any(n < 0 or n > width for n in lengths):
            raise BadInput(f"row lengths {list(lengths)} do not fit a width of {width}")
        column = torch.arange(width)
        size, start = torch.tensor(lengths)[:, None], torch.tensor(starts)[:, None]
        rank = column if pad == "right" else column - (width - size)
        pos = torch.where((rank >= 0) & (rank < size), rank + start, EMPTY)
        return Positions.of(pos).to(device)

    @staticmethod
    def onward(starts_B: Tensor, width: int) -> Positions:
        """Every row runs on from its own start, wherever the starts lie; no place is empty."""
        pos = starts_B[:, None] + torch.arange(width, device=starts_B.device)
        known = Known.read(pos, pos)
        return Positions(
            pos, pos, known=replace(known, counts=(width,) * len(pos), empty=False, runs=True, rising=True)
        )

    @staticmethod
    def of(
        pos: Tensor,
        *,
        order: Tensor | None = None,
        segment: Tensor | None = None,
        bounds: tuple[int, int] | None = None,
    ) -> Positions:
        """From tensors (B, T) or (T,); -1 is an empty place. ``order`` rises along each row.

        On a device other than the host nothing is read back: say ``bounds``, the lowest and
        highest position, where a part needs them (a learned table, xPos, dynamic NTK).
        """
        pos = pos[None] if pos.dim() == 1 else pos
        order = pos if order is None else (order[None] if order.dim() == 1 else order)
        segment = segment[None] if segment is not None and segment.dim() == 1 else segment
        for name, t in (("order", order), ("segment", segment)):
            if t is not None and t.shape != pos.shape:
                raise BadInput(f"{name} has shape {tuple(t.shape)}, positions {tuple(pos.shape)}: they must agree")
        if pos.dim() != 2:
            raise BadInput(f"positions have shape {tuple(pos.shape)}: give (batch, tokens) or (tokens,)")
        if order.is_floating_point():
            raise BadInput("fractional positions need order=, the whole-number rank that masks read")
        known = Known.read(pos, order)
        if bounds is not None:
            known = replace(known, pos=bounds, order=known.order or bounds)
        if segment is not None:
            documents = packed_documents(pos, order, segment)
            known = replace(known, first=None, same_rows=False, documents=documents, runs=False, rising=False)
        return Positions(pos, order, segment, known)

    @staticmethod
    def of_axes(axes: Tensor, *, starts: Tensor | None = None, segment: Tensor | None = None) -> Positions:
        """Tokens that stand on several axes (A, B, T), as patches of an image do; -1 on all of them is an empty place.

        Masks go by the rank in the row, from 0 or from ``starts`` (B,): ``cache.next_positions.order``.
        """
        if axes.dim() != 3:
            raise BadInput(f"axes have shape {tuple(axes.shape)}: give (axes, batch, tokens)")
        pos = axes.amax(0)
        where = Positions.of(pos, order=Positions.from_mask(pos >= 0, starts).order, segment=segment)
        return replace(
            where, axes=axes, known=replace(where.known, first=None, same_rows=False, runs=False, rising=False)
        )

    @staticmethod
    def from_mask(mask: Tensor, starts: Tensor | None = None) -> Positions:
        """From a padding mask (B, T), true or 1 where there is a token."""
        real = mask.bool()
        rank = real.long().cumsum(1) - 1
        rank = rank if starts is None else rank + starts.to(rank.device)[:, None]
        where = Positions.of(torch.where(real, rank, EMPTY))
        if starts is not None or where.known.pos is not None:
            return where
        return replace(where, known=replace(where.known, limit=rank.shape[1] - 1))

    @staticmethod
    def packed(lengths: Sequence[Sequence[int]], *, width: int | None = None) -> Positions:
        """Documents packed into rows: ``pos`` restarts with each document, ``order`` runs on."""
        width = max(sum(row) for row in lengths) if width is None else width
        pos = torch.full((len(lengths), width), EMPTY)
        order, segment = pos.clone(), pos.clone()
        for b, row in enumerate(lengths):
            total = sum(row)
            if total > width:
                raise BadInput(f"row {b} holds {total} tokens, wider than {width}")
            pos[b, :total] = torch.cat([torch.arange(n) for n in row]) if row else pos[b, :0]
            order[b, :total] = torch.arange(total)
            segment[b, :total] = order[b, :total] - pos[b, :total]
        return Positions.of(pos, order=order, segment=segment)

    # ---- looking at them

    @property
    def shape(self) -> tuple[int, int]:
        return self.pos.shape[0], self.pos.shape[1]

    @property
    def device(self) -> torch.device:
        return self.pos.device

    @property
    def filled(self) -> Tensor:
        """(B, T) bool: where there is a token."""
        return self.order >= 0

    @property
    def place(self) -> Place:
        return Place(self.pos, self.order, self.segment)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Work something out once for these positions: all layers of a forward pass share it."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def against(self, keys: Positions) -> Pair:
        """These queries looking at those keys. One object per pair, so masks are built once."""

        def pair() -> Pair:
            q = self.without_memo()
            return Pair(q, q if keys is self else keys)

        return self.once(("pair", id(keys)), pair)

    # ---- changing them

    def without_memo(self) -> Positions:
        """The same positions, for what our own memo keeps: with us in it, its masks would wait for the collector."""
        return replace(self, memo={})

    def to(self, device: torch.device | str | None) -> Positions:
        if device is None or torch.device(device) == self.device:
            return self
        segment = None if self.segment is None else self.segment.to(device)
        axes = None if self.axes is None else self.axes.to(device)
        pos, order = self.pos.to(device), self.order.to(device)
        return replace(self, pos=pos, order=order, segment=segment, axes=axes, memo={})

    def declare(self, length: int | None) -> Positions:
        """The same positions, in a context of a declared length."""
        return self if length == self.length else replace(self, length=length, memo={})

    def expand(self, batch: int) -> Positions:
        """One row for every row of a batch."""
        known = self.known
        counts = None if known.counts is None else known.counts[:1] * batch
        known = replace(known, counts=counts, same_rows=self.segment is None, documents=None)
        segment = None if self.segment is None else self.segment.expand(batch, -1)
        pos, order = self.pos.expand(batch, -1), self.order.expand(batch, -1)
        axes = None if self.axes is None else self.axes.expand(-1, batch, -1)
        return Positions(pos, order, segment, known, self.length, axes)

    def repeat(self, times: int) -> Positions:
        """Every row so many times, one after the other."""
        counts = None if self.known.counts is None else tuple(n for n in self.known.counts for _ in range(times))
        pos, order = self.pos.repeat_interleave(times, 0), self.order.repeat_interleave(times, 0)
        segment = None if self.segment is None else self.segment.repeat_interleave(times, 0)
        known = replace(self.known, counts=counts, documents=None)
        return Positions(pos, order, segment, known, self.length)

    def every(self, step: int, first: int) -> Positions:
        """Rows first, first + step, …: the way back from ``repeat``."""
        cut = slice(first, None, step)
        counts = None if self.known.counts is None else self.known.counts[cut]
        segment = None if self.segment is None else self.segment[cut]
        known = replace(self.known, counts=counts, documents=None)
        return Positions(self.pos[cut], self.order[cut], segment, known, self.length)

    def ahead(self, by_B: Tensor) -> Positions:
        """The same tokens, each row so much further on for encodings; masks see no difference."""
        return Positions.of(torch.where(self.filled, self.pos + by_B[:, None], EMPTY), order=self.order)

    def narrow(self, start: int, width: int) -> Positions:
        """Columns start … start + width - 1."""
        cut = slice(start, start + width)
        pos, order = self.pos[:, cut], self.order[:, cut]
        segment = None if self.segment is None else self.segment[:, cut]
        known = self.known
        if known.first is not None:
            known = Known.run(known.first + start, len(pos), width)
        else:
            known = replace(known, counts=Known.read(pos, order).counts, documents=None)
        axes = None if self.axes is None else self.axes[:, :, cut]
        return Positions(pos, order, segment, known, self.length, axes)

    def pick(self, columns: Tensor) -> Positions:
        """These columns, in any order."""
        segment = None if self.segment is None else self.segment[:, columns]
        # bounds are bounds of fewer, too
        known = replace(self.known, first=None, counts=None, documents=None, runs=False, rising=False)
        axes = None if self.axes is None else self.axes[:, :, columns]
        return Positions(self.pos[:, columns], self.order[:, columns], segment, known, self.length, axes)


def packed_documents(pos_BT: Tensor, order_BT: Tensor, segment_BT: Tensor) -> tuple[int, int] | None:
    """How many documents there are and how long the longest is, where rows hold one after another from the left, each
    running from 0 on; ``None``: they do not, or nothing can be read without asking a device."""
    if pos_BT.device.type != "cpu" or pos_BT.numel() == 0 or pos_BT.is_floating_point():
        return None
    filled, rank = order_BT >= 0, order_BT - segment_BT
    first = filled & (rank == 0)
    runs_on = torch.zeros_like(filled)
    runs_on[:, 1:] = filled[:, :-1] & (segment_BT[:, 1:] == segment_BT[:, :-1])
    packed = ~filled | ((first | runs_on) & (order_BT == torch.arange(order_BT.shape[1])) & (pos_BT == rank))
    if not bool(packed.all()) or not bool((filled[:, :-1] | ~filled[:, 1:]).all()) or not bool(filled.any()):
        return None
    return int(first.sum()), int(rank[filled].max()) + 1


class Pair:
    """Queries and the keys they look at, with what is worked out once for all layers."""

    def __init__(self, q: Positions, k: Positions):
        self.q, self.k = q, k
        self._memo: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    @property
    def rows(self) -> int:
        """Rows that differ: 1 when every row of the batch holds the same positions."""
        same = self.q.known.same_rows and self.k.known.same_rows
        return 1 if same and self.q.segment is None and self.k.segment is None else self.q.shape[0]

    def places(self) -> tuple[Place, Place]:
        """The queries as (R, 1, Tq, 1) and the keys as (R, 1, 1, Tk), R being ``rows``."""
        n = self.rows

        def cut(t: Tensor | None, column: bool) -> Tensor | None:
            if t is None:
                return None
            t = t[:n, None]
            return t[:, :, None, :] if column else t[..., None]

        q, k = self.q, self.k
        return (
            Place(cut(q.pos, False), cut(q.order, False), cut(q.segment, False)),  # pyright: ignore[reportArgumentType] (cut keeps None as None)
            Place(cut(k.pos, True), cut(k.order, True), cut(k.segment, True)),  # pyright: ignore[reportArgumentType]
        )
