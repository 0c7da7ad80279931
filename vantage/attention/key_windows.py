"""Windows of m tokens of a document, by their ranks, wherever a cache keeps them; and how m keys become one entry.

C = norm(Σ_j softmax_j(Z_j + P_j) ⊙ C_j), channel by channel, over the tokens j of a window (DeepSeek-V4 2026).
Entries are made anew from kept tokens on every reading, and a window closes by rank and not by slot. So padding, packed
documents, tokens that are taken back and shared prefixes need no care, and nothing half-filled is ever kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.spec.positions import EMPTY, Known, Pair, Positions


@dataclass(frozen=True, eq=False)
class KeyWindows:
    """The nearest tokens of a view, and all whole windows in it. E: how many there can be; some may be empty.

    An entry stands at its first token's position, which encodings read, and has the order of its last, which masks
    read: a query sees it once it sees the window's end.
    """

    size: int  # m
    width: int  # S, how many tokens the view has
    near: Tensor | slice  # (B, n) columns of the nearest tokens, or where they lie in every row
    members: Tensor | slice  # (B, E·m) columns of the windows' tokens, or where they lie in every row
    earlier: Tensor | None  # (B, E, m) columns of the tokens of the window before; None: of the entry before
    follows: Tensor  # (B or 1, E): whether that window is there
    entries: Positions  # (B, E)
    seen: Positions  # (B, n + E): the nearest tokens, and then the entries

    @staticmethod
    def of(pair: Pair, size: int, near: int, *, causal: bool) -> KeyWindows:
        """Of the keys of a pair, for its queries; worked out once for all layers of a pass. ``causal``: no query looks
        at what is behind it."""
        make = _of_run if pair.k.known.first is not None else _of_any
        ahead = 0 if causal else near - 1
        return pair.once(("windows", size, near, ahead), lambda: make(pair.q, pair.k, size, near, ahead))

    @property
    def tokens(self) -> int:
        """How many of ``seen`` are tokens."""
        return self.seen.shape[1] - self.entries.shape[1]

    def nearest(self, x_BGSw: Tensor) -> Tensor:
        """(B, G, n, w)"""
        return _columns(x_BGSw, self.near)

    def inside(self, x_B1Sw: Tensor) -> Tensor:
        """(B, E, m, w): the tokens of each window."""
        return _columns(x_B1Sw, self.members)[:, 0].unflatten(1, (self.entries.shape[1], self.size))

    def before(self, x_B1Sw: Tensor) -> Tensor:
        """(B, E, m, w): those of the window before; anything where ``follows`` is false."""
        if self.earlier is None:
            return F.pad(self.inside(x_B1Sw), (0, 0, 0, 0, 1, 0))[:, :-1]
        return _columns(x_B1Sw, self.earlier.flatten(1))[:, 0].unflatten(1, self.earlier.shape[1:])

    def last(self, x_BGSw: Tensor) -> Tensor:
        """(B, G, E, w): of each window's last token."""
        tokens = _columns(x_BGSw, self.members)
        return tokens.unflatten(2, (self.entries.shape[1], self.size))[:, :, :, -1]

    def mean_scores(self, scores_BHTS: Tensor) -> Tensor:
        """(B, H, T, E + 1): of each window's tokens, -inf unless all of them are seen. The last column stands for the
        tokens that are in no window: it is -inf."""
        tokens = _columns(scores_BHTS.transpose(2, 3), self.members).transpose(2, 3)
        means = tokens.unflatten(3, (self.entries.shape[1], self.size)).mean(-1)
        means = means.masked_fill(~self.entries.filled[:, None, None], float("-inf"))
        return F.pad(means, (0, 1), value=float("-inf"))

    def at_tokens(self, x_BHTE: Tensor) -> Tensor:
        """(B, H, T, S): at each token what stands for its window, among E + 1."""
        return x_BHTE.gather(3, self.window_of[:, None, None].expand(*x_BHTE.shape[:3], -1))

    @cached_property
    def window_of(self) -> Tensor:
        """(B, S): the window that each token is in; E: none."""
        B, count = self.entries.shape
        columns = torch.arange(self.width, device=self.entries.device).expand(B, -1)
        inside = _columns(columns[:, None, :, None], self.members)[:, 0, :, 0]
        inside = torch.where(self.entries.filled.repeat_interleave(self.size, 1), inside, self.width)
        windows = torch.arange(count, device=columns.device).repeat_interleave(self.size).expand(B, -1)
        none = torch.full((B, self.width + 1), count, device=columns.device)  # the last column takes what is not whole
        return none.scatter(1, inside, windows)[:, :-1]


def _of_run(queries: Positions, kept: Positions, size: int, near: int, ahead: int) -> KeyWindows:
    """Every row runs on from the same rank, in one document: windows are stretches of the view."""
    first, S, bounds = kept.known.first, kept.shape[1], queries.known.order
    assert first is not None
    start = min(S, -first % size)
    count = (S - start) // size
    nearest = slice(0, S)
    if bounds is not None:
        nearest = slice(max(0, bounds[0] - near + 1 - first), min(S, bounds[1] + ahead + 1 - first))
    stretch = slice(start, start + count * size)
    pos, order = kept.pos[:, stretch], kept.order[:, stretch]
    known = Known(order=kept.known.order, pos=kept.known.pos, empty=False, same_rows=kept.known.same_rows)
    entries = Positions(pos[:, ::size], order[:, size - 1 :: size], None, known, kept.length)
    follows = torch.arange(count, device=kept.device)[None] > 0
    tokens = kept.narrow(nearest.start, nearest.stop - nearest.start)
    return KeyWindows(size, S, nearest, stretch, None, follows, entries, _joined(tokens, entries))


def _of_any(queries: Positions, kept: Positions, size: int, near: int, ahead: int) -> KeyWindows:
    """Tokens in any arrangement: they are sorted by their order, and a window ends where its last token follows its
    first without a gap. No two windows share a token, so there are no more than S / m."""
    B, S = kept.shape
    columns = kept.order.argsort(dim=-1)  # empty places first
    order = kept.order.gather(1, columns)
    rank = kept.place.rank.gather(1, columns)
    ends = (rank % size == size - 1) & (order >= 0) & _unbroken(order, size - 1)
    count = S // size
    at = (~ends).to(torch.int8).argsort(dim=-1, stable=True)[:, :count]  # the ends, in order
    whole = ends.gather(1, at)
    follows = whole & _unbroken(order, 2 * size - 1).gather(1, at) & (rank.gather(1, at) >= 2 * size - 1)
    back = torch.arange(1 - size, 1, device=kept.device)
    members, earlier = (columns.gather(1, _flat(at, back - n)) for n in (0, size))
    entries = _entries(kept, members.view(B, count, size), whole)
    amount = min(S, _span(queries, S) + near - 1 + ahead)
    nearest, tokens = slice(0, S), kept
    if amount < S:
        last = (order <= queries.order.amax(1, keepdim=True) + ahead).sum(1, keepdim=True)
        index = last - amount + torch.arange(amount, device=kept.device)
        nearest = columns.gather(1, index.clamp_min(0))
        tokens = _picked(kept, nearest, index >= 0)
    earlier = earlier.view(B, count, size)
    return KeyWindows(size, S, nearest, members, earlier, follows, entries, _joined(tokens, entries))


def _span(queries: Positions, most: int) -> int:
    """From the first to the last query of a row there are no more tokens than this, as far as the host knows. They need
    not be the last of the keys, nor lie side by side: a process may have some of a row's tokens."""
    if queries.shape[1] == 1:
        return 1
    bounds = queries.known.order
    return most if bounds is None else bounds[1] - bounds[0] + 1


def _flat(at_BE: Tensor, back_m: Tensor) -> Tensor:
    return (at_BE[..., None] + back_m).clamp_min(0).flatten(1)


def _unbroken(order_BS: Tensor, steps: int) -> Tensor:
    """Whether so many tokens stand right before each one, one by one."""
    earlier = F.pad(order_BS, (steps, 0), value=EMPTY - 1)[:, : order_BS.shape[1]]
    return (earlier >= 0) & (order_BS - earlier == steps)


def _entries(kept: Positions, members_BEm: Tensor, whole_BE: Tensor) -> Positions:
    at = _picked(kept, members_BEm[..., -1], whole_BE)
    first = torch.where(whole_BE, kept.pos.gather(1, members_BEm[..., 0]), EMPTY)
    return Positions(first, at.order, at.segment, at.known, at.length)


def _picked(kept: Positions, columns: Tensor, filled: Tensor) -> Positions:
    def at(values: Tensor) -> Tensor:
        return torch.where(filled, values.gather(1, columns), EMPTY)

    segment = None if kept.segment is None else at(kept.segment)
    return Positions(at(kept.pos), at(kept.order), segment, _known(kept), kept.length)


def _known(kept: Positions) -> Known:
    """What still holds of some of the places: bounds are bounds of fewer, too."""
    return Known(order=kept.known.order, pos=kept.known.pos, same_rows=kept.known.same_rows)


def _joined(tokens: Positions, entries: Positions) -> Positions:
    def both(take: Callable[[Positions], Tensor]) -> Tensor:
        return torch.cat([take(tokens), take(entries)], 1)

    segment = None if tokens.segment is None else both(lambda p: p.segment)  # pyright: ignore[reportArgumentType] (both have one)
    a, b = tokens.known, entries.known
    known = Known(
        order=_bounds(a.order, b.order),
        pos=_bounds(a.pos, b.pos),
        empty=a.empty or b.empty,
        same_rows=a.same_rows and b.same_rows,
    )
    return Positions(both(lambda p: p.pos), both(lambda p: p.order), segment, known, tokens.length)


def _bounds(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _columns(x_BGSw: Tensor, columns: Tensor | slice) -> Tensor:
    if isinstance(columns, slice):
        return x_BGSw[:, :, columns]
    return x_BGSw.gather(2, columns[:, None, :, None].expand(-1, x_BGSw.shape[1], -1, x_BGSw.shape[3]))


class WindowPool(nn.Module):
    """Makes of each window one entry. ``overlap``: of each window and the one before it, which has features of its own
    for that (CSA)."""

    def __init__(
        self, linear: Callable[[int, int, bool], nn.Module], width: int, dim: int, size: int, *, overlap: bool
    ):
        super().__init__()
        self.dim, self.overlap = dim, overlap
        self.features = (2 if overlap else 1) * dim
        self.maps = linear(width, 2 * self.features, False)  # C and Z
        self.bias = nn.Parameter(torch.zeros(size, self.features))  # P

    def keep(self, x_BTD: Tensor) -> Tensor:
        """(B, 1, T, 2 · features): what is kept of a token."""
        return self.maps(x_BTD)[:, None]

    def forward(self, kept_B1Sw: Tensor, windows: KeyWindows) -> Tensor:
        """(B, 1, E, dim), before the norm. Weights are of float32 at least."""
        content, gate = windows.inside(kept_B1Sw).chunk(2, -1)
        wide = torch.promote_types(gate.dtype, torch.float32)
        gate = gate.to(wide) + self.bias.to(wide)
        if self.overlap:
            before, its_gate = windows.before(kept_B1Sw).chunk(2, -1)
            its_gate = (its_gate.to(wide) + self.bias.to(wide))[..., : self.dim]
            its_gate = its_gate.masked_fill(~windows.follows[..., None, None], float("-inf"))
            gate = torch.cat([its_gate, gate[..., self.dim :]], 2)
            content = torch.cat([before[..., : self.dim], content[..., self.dim :]], 2)
        return (content * gate.softmax(2).to(content.dtype)).sum(2)[:, None]
