"""The engine's keys and values: one pool of blocks, and the prefixes that are kept in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from vantage.cache import ModelCache
from vantage.generation.prefix import Match, Prefixes, PrefixKey
from vantage.generation.stats import paths_of
from vantage.model import Model

MAX_PREFIXES = 64  # prefixes in a pool that grows


@final
class BlockMemory:
    """``capacity`` tokens in blocks of ``block`` (``None``: it grows). Windowed layers are paged too.

    Where prefixes are shared they keep what has left their window, so that a cut can be anywhere.
    ``cut``: prefixes are shared in multiples of so many tokens.
    """

    def __init__(self, model: Model, *, capacity: int | None, block: int, gather: bool, cut: int, share: bool):
        # with max_memory a pool that grew would take what there is no room for
        capacity = model.placement.capacity if capacity is None else capacity
        # what has left a window is needed only where a prefix may be cut; one token can always be taken back
        draft = None if share else 1
        self._empty = model.new_cache(1, kind="paged", capacity=capacity, block=block, draft=draft)
        self._pools = [ledger.pool for ledger in self._empty.paged]
        for ledger in self._empty.paged:
            ledger.gather = gather
        self._block, self._cut, self._share = block, cut, share
        self.masks = self._empty.masks
        self.prefixes = Prefixes()

    # ---- rows

    def new(self, length: int | None) -> ModelCache:
        """An empty row."""
        row = self._empty.fresh(1)
        row.length = length
        return row

    def find(self, key: PrefixKey, tokens: Sequence[int]) -> tuple[Match, ModelCache]:
        """A row that holds as much of these tokens as was computed before."""
        if not self._share:
            return self.unshared(key)
        match, held = self.prefixes.find(key, tokens)
        at = match.tokens - match.tokens % self._cut
        while at and not self.settled(at):
            at -= self._cut
        if held is None or at == 0:
            return Match(0, match.reason), self.new(key.length)
        row = held.fork()
        at = row.nearest_cut(at)
        row.crop(at)
        return Match(at, match.reason), row

    def unshared(self, key: PrefixKey) -> tuple[Match, ModelCache]:
        """An empty row for a sample that is to compute everything itself."""
        return Match(0, "not sought"), self.new(key.length)

    def keep(self, key: PrefixKey, tokens: Sequence[int], row: ModelCache) -> None:
        """Take a row over, for requests that begin with its tokens."""
        if not self._share:
            row.free()
        else:
            self.prefixes.keep(key, tokens, row)
            self._bound()

    def keep_blocks(self, key: PrefixKey, tokens: Sequence[int], row: ModelCache) -> None:
        """Share what is full of a row that still grows: a part-full block would have to be copied to go on."""
        cut = self._cut if self._cut > 1 else self._block
        at = len(tokens) - len(tokens) % cut
        if self._share and at:
            fork = row.fork()
            if at := fork.nearest_cut(at):
                fork.crop(at)
                self.prefixes.keep(key, tokens[:at], fork)
                self._bound()

    def _bound(self) -> None:
        """A pool that grows never runs out of blocks, so prefixes would be kept for ever."""
        while self._pools[0].grows and len(self.prefixes) > MAX_PREFIXES:
            self.prefixes.evict(shared=True)

    def settled(self, at: int) -> bool:
        """Whether tokens may be cut here: none before can see one after."""
        return all(mask.settled(at) for mask in self.masks)

    # ---- blocks

    def fits(self, tokens: int) -> bool:
        """Whether one row of so many tokens could ever be held."""
        return all(pool.grows or -(-tokens // pool.block) <= pool.blocks for pool in self._pools)

    def blocks(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self._block)

    def spare(self, row: ModelCache, tokens: int, reserve: int) -> bool:
        """Whether this row can take so many tokens and leave so many blocks."""
        return all(ledger.pool.grows or ledger.wants(tokens) + reserve <= ledger.pool.free for ledger in row.paged)

    def spare_for(self, rows: Sequence[ModelCache], tokens: int) -> bool:
        """Whether each of these rows can take so many tokens."""
        for i, pool in enumerate(self._pools):
            if not pool.grows and sum(row.paged[i].wants(tokens) for row in rows) > pool.free:
                return False
        return True

    def could_spare(self, row: ModelCache, tokens: int, reserve: int, others: Sequence[ModelCache]) -> bool:
        """The same, if all prefixes were let go and only these others stayed."""
        for i, ledger in enumerate(row.paged):
            pool = ledger.pool
            stay = set().union(*(cache.paged[i].blocks for cache in (row, *others)))
            if not pool.grows and ledger.wants(tokens) + reserve > pool.blocks - len(stay):
                return False
        return True

    @property
    def blocks_used(self) -> int:
        return sum(pool.blocks - pool.free for pool in self._pools)

    @property
    def blocks_free(self) -> int:
        return sum(pool.free for pool in self._pools)

    @property
    def bytes_held(self) -> int:
        """Keys and values of the blocks in use."""
        total = 0
        for layer in self._empty.layers:
            pool = layer.ledger.pool  # pyright: ignore[reportAttributeAccessIssue] (every ledger here is paged)
            total += (pool.blocks - pool.free) * pool.block * layer.store.token_bytes
        return total

    @property
    def paths(self) -> dict[str, int]:
        """Tokens by the path that computed them."""
        return paths_of(self._empty)

    @property
    def projections(self) -> tuple[int, ...]:
        """Keys projected in each layer so far."""
        return tuple(layer.store.written for layer in self._empty.layers)
