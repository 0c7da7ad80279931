"""The caches of all layers of a model, as one thing that is stepped, taken back, forked and reordered."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import final

import torch
from torch import Tensor

from vantage.cache.facts import NextPositions, on_host
from vantage.cache.join import apart, joined
from vantage.cache.layer_cache import LayerCache
from vantage.cache.ledger import LedgerExtension, Piecewise, Savepoint
from vantage.cache.paged import Paged
from vantage.cache.report import CacheReport
from vantage.errors import CacheError, Refused
from vantage.spec.masks import Mask
from vantage.spec.positions import Positions


@final
class ModelCache:
    """One cache per layer, and one per cross-attention layer.

    ``length`` is the context length declared for rules that depend on it: it is fixed for the
    life of a cache. ``recomputed`` counts the tokens that a model computed again to grow past it.
    """

    def __init__(
        self,
        layers: Sequence[LayerCache],
        cross: Sequence[LayerCache] = (),
        *,
        masks: Sequence[Mask] = (),
        owner: object = None,
        length: int | None = None,
    ):
        self.layers, self.cross = tuple(layers), tuple(cross)
        self.ledgers = tuple({id(c.ledger): c.ledger for c in self.layers}.values())
        self.cross_ledgers = tuple({id(c.ledger): c.ledger for c in self.cross}.values())
        self.states = tuple(c.own_states for c in self.layers if c.own_states is not None)
        self.paged = tuple(ledger for ledger in self.ledgers if isinstance(ledger, Paged))  # those in pools of blocks
        self._piecewise = tuple(ledger for ledger in self.ledgers if isinstance(ledger, Piecewise))
        self.masks = tuple(dict.fromkeys(masks))
        self.owner, self.length = owner, length
        self.recomputed = 0
        self.ahead: Tensor | None = None  # (B,): by how much positions are ahead of the order, after several axes
        self._ahead_after: Tensor | None = None  # the same once the open pass is committed
        self._savepoints: list[Savepoint] | None = None
        self._unwatched = False  # whether nobody would tell that the open pass has failed

    # ---- a pass

    def widest(self, pos: Positions) -> int:
        """How many columns of these may make one pass: all, unless a token decides what a later one sees, and how."""
        return min(ledger.widest(pos) for ledger in self._piecewise) if self._piecewise else pos.shape[1]

    def step(self, pos: Positions | None) -> CachePass:
        """``with cache.step(pos): …`` runs one forward pass: all of it is kept, or none. ``None``: as for ``begin``."""
        return CachePass(self, pos)

    def begin(self, pos: Positions | None, *, unwatched: bool = False) -> None:
        """Place these positions everywhere, before any layer writes: what is refused is refused here.

        ``None``: the keys of this pass are kept elsewhere, and layers look at what is here. ``unwatched``: nobody says
        so if the pass fails. Whoever uses the cache next finds it open, and it is undone.
        """
        self._idle("already running: finish it, or use cache.fork()")
        self._unwatched = unwatched
        self._ahead_after = self.ahead
        if pos is not None:
            self._check_settled(pos)
            self._ahead_after = self.ahead if pos.axes is None else self._ahead(pos)
        self._savepoints = [ledger.savepoint() for ledger in (*self.ledgers, *self.cross_ledgers)]
        try:
            if pos is not None:
                for ledger in self.ledgers:
                    ledger.place(pos)
        except BaseException:
            self.abandon()
            raise

    def commit(self) -> None:
        """The pass has succeeded: do the writes that wait."""
        for ledger in (*self.ledgers, *self.cross_ledgers):
            ledger.commit()
        for cache in (*self.layers, *self.cross):
            cache.store.settle()
        for states in self.states:
            states.commit()
        self.ahead = self._ahead_after
        self._savepoints = None

    def abandon(self) -> None:
        """The pass has failed: everything as it was."""
        savepoints, self._savepoints = self._savepoints or (), None
        for savepoint in savepoints:
            savepoint.ledger.roll_back(savepoint)
        for cache in (*self.layers, *self.cross):
            cache.store.settle()
        for states in self.states:
            states.abandon()

    def _ahead(self, pos: Positions) -> Tensor:
        """(B,): how far the highest position of each row is ahead of its highest order, after these tokens."""
        last = self.ledgers[0].next_positions.order - 1
        highest = last if self.ahead is None else last + self.ahead
        return torch.maximum(highest, pos.pos.amax(1)) - torch.maximum(last, pos.order.amax(1))

    def _check_settled(self, pos: Positions) -> None:
        """Tokens may only follow where nobody before them could have seen them."""
        if not any(ledger.holding for ledger in self.ledgers):
            return
        for start in _starts(pos):
            for mask in self.masks:
                if not mask.settled(start):
                    raise Refused(
                        f"tokens from {start} on cannot be appended: under {mask} earlier ones should have seen them. "
                        "Give all tokens that see each other in one pass (a whole prefix, a whole document), "
                        "or use no cache"
                    )

    # ---- several steps at once

    @property
    def extensible(self) -> bool:
        """Whether ``extend`` works: every row is one plain run, and nothing is kept but keys and values in place."""
        plain = not self.cross and not self.states and self.ahead is None
        return plain and all(ledger.extensible for ledger in self.ledgers)

    def extend(self, tokens: int, path: str) -> list[LedgerExtension]:
        """Hold so many tokens more in every row, which a kernel will write: one extension for each ledger.

        ``path``: what they are computed by, for who counts them.
        """
        self._idle()
        before, extensions = self.tokens, list[LedgerExtension]()
        try:
            for ledger in self.ledgers:
                extensions.append(ledger.extend(tokens))
        except BaseException:
            for ledger, extension in zip(self.ledgers, extensions, strict=False):
                ledger.crop([extension.first + n for n in before])
            raise
        by_ledger = {id(ledger): extension for ledger, extension in zip(self.ledgers, extensions, strict=True)}
        for layer in self.layers:
            extension = by_ledger[id(layer.ledger)]
            layer.store.extend(extension.places, extension.copies, tokens * self.batch, path)
        return extensions

    # ---- between passes

    def crop(self, to: int | Sequence[int]) -> None:
        """Keep only tokens with an order below ``to`` (one for all rows, or one a row). All layers or none."""
        self._idle()
        checked = [ledger.check_crop(to) for ledger in self.ledgers]
        rows = checked[0]
        for states in self.states:
            states.check_crop(rows)
        for ledger in self.ledgers:
            ledger.crop(to)
        for states in self.states:
            states.crop(rows)
        if self.ahead is not None:
            self.ahead = torch.zeros_like(self.ahead)
            if self.ledgers[0].holding:
                held = self.ledgers[0].look().view_pos
                self.ahead = held.pos.amax(1) - held.order.amax(1)

    def nearest_cut(self, to: int) -> int:
        """The highest order up to ``to`` that its rows can go back to: ``to`` itself, unless a layer keeps states."""
        while self.states and to:
            nearest = min(states.nearest(b, to) for states in self.states for b in range(self.batch))
            if nearest == to:
                break
            to = nearest
        return to

    def reorder(self, index: Sequence[int] | Tensor) -> None:
        """Row i becomes what row index[i] was (beams). There may be more or fewer rows afterwards."""
        self._idle()
        ledgers = (*self.ledgers, *self.cross_ledgers)
        rows = ledgers[0].check_index(index)
        for cache in (*self.layers, *self.cross):
            cache.reorder(rows)
        for ledger in ledgers:
            ledger.reorder(rows)
        if self.ahead is not None:
            self.ahead = self.ahead[torch.tensor(rows, device=self.ahead.device)]

    def fork(self) -> ModelCache:
        """An independent cache that holds the same. Paged caches share the memory until one of them writes."""
        self._idle()
        forks = {id(ledger): ledger.fork() for ledger in (*self.ledgers, *self.cross_ledgers)}
        other = self.like([c.fork(forks[id(c.ledger)]) for c in (*self.layers, *self.cross)])
        other.recomputed, other.ahead = self.recomputed, self.ahead
        return other

    def fresh(self, batch: int = 1) -> ModelCache:
        """An empty cache of the same arrangement; a paged one takes its blocks from the same pool."""
        new = {id(ledger): ledger.fresh(batch) for ledger in (*self.ledgers, *self.cross_ledgers)}
        return self.like([c.fresh(new[id(c.ledger)]) for c in (*self.layers, *self.cross)])

    @staticmethod
    def join(caches: Sequence[ModelCache]) -> ModelCache:
        """The rows of several paged caches over one pool as the rows of one, without copying keys or values.

        The parts hold nothing afterwards. What cross-attention looks at is copied.
        """
        for cache in caches:
            cache._idle()
        return joined(caches)

    def split(self) -> list[ModelCache]:
        """Every row as a cache of its own, the way back from ``join``. This one holds nothing afterwards."""
        self._idle()
        return apart(self)

    def free(self) -> None:
        """Hold nothing any more; a paged cache gives its blocks back."""
        self._idle()
        for ledger in (*self.ledgers, *self.cross_ledgers):
            ledger.free()
        for states in self.states:
            states.free()
        self.ahead = None

    def like(self, layers: Sequence[LayerCache]) -> ModelCache:
        """The same arrangement of these layers, those of cross-attention last."""
        cut = len(self.layers)
        return ModelCache(layers[:cut], layers[cut:], masks=self.masks, owner=self.owner, length=self.length)

    def _undo_failed(self) -> None:
        """A pass that nobody watched and that is still open has failed."""
        if self._unwatched and self._savepoints is not None:
            self.abandon()

    def _idle(self, otherwise: str = "running: wait until it is over") -> None:
        self._undo_failed()
        if self._savepoints is not None:
            raise CacheError(f"a pass with this cache is {otherwise}")

    # ---- what it holds

    def belongs_to(self, owner: object) -> None:
        """Raises if another model made this cache. The first thing that a model asks of it."""
        self._undo_failed()
        if self.owner is not owner:
            raise CacheError("this cache belongs to another model: make one with model.new_cache(...)")

    @property
    def has_memory(self) -> bool:
        """Whether cross-attention already has what it looks at."""
        return any(ledger.holding for ledger in self.cross_ledgers)

    @property
    def batch(self) -> int:
        return self.ledgers[0].batch

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens each row stands for, those that left a window included. May read a device."""
        self._undo_failed()
        return self.ledgers[0].tokens

    @property
    def next_positions(self) -> NextPositions:
        """Where each row goes on: (B,) on the device, and a number where all rows agree and the host knows.

        After tokens with several axes (an image) a row goes on past the highest of all, which ``ahead`` tells.
        """
        self._undo_failed()
        start = self.ledgers[0].next_positions
        return start if self.ahead is None else start._replace(ahead=self.ahead)

    @property
    def freeable(self) -> int:
        """How many blocks of its pools nobody else uses: what ``free`` would give back."""
        return sum(ledger.freeable for ledger in self.paged)

    def room(self, tokens: int) -> bool:
        """Whether every row can take so many tokens more from its pool."""
        return all(ledger.pool.grows or ledger.wants(tokens) <= ledger.pool.free for ledger in self.paged)

    @property
    def bytes(self) -> int:
        """What all keys and values take as allocated; a shared pool counts in every cache that uses it."""
        return sum(cache.bytes for cache in (*self.layers, *self.cross))

    def holds(self) -> CacheReport:
        """What each layer holds, by position. Prints itself. Reads devices back: a report, not for a hot loop."""
        held = {id(ledger): ledger.holds() for ledger in (*self.ledgers, *self.cross_ledgers)}
        layers = tuple(held[id(cache.ledger)] for cache in self.layers)
        return CacheReport(layers, tuple(held[id(cache.ledger)] for cache in self.cross), self.bytes)


@final
class CachePass:
    """One forward pass as a context: kept if it ends well, undone if it does not."""

    def __init__(self, cache: ModelCache, pos: Positions | None):
        self._cache, self._pos = cache, pos

    def __enter__(self) -> ModelCache:
        self._cache.begin(self._pos)
        return self._cache

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._cache.commit()
        else:
            self._cache.abandon()


def _starts(pos: Positions) -> set[int]:
    """The rank in its document at which each row goes on here, as far as the host can tell."""
    known = pos.known
    if known.first is not None:
        return {known.first}
    if on_host(pos.device):
        far = torch.iinfo(pos.order.dtype).max
        order, column = pos.order.masked_fill(~pos.filled, far).min(1, keepdim=True)
        rank = order if pos.segment is None else order - pos.segment.gather(1, column)
        return set(rank[order < far].tolist())
    return set() if known.order is None or pos.segment is not None else {known.order[0]}
