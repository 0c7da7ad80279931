"""Every arrangement against rows of tokens in lists: any sequence of passes, crops, forks and reorders."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.cache.helpers import Chunk, Oracle, Token, check_view, chunk_of, device_like, fail, model_cache, plain, run
from vantage.cache import Contiguous, Ledger, ModelCache, Paged, Pool, Ring, Static
from vantage.errors import BadInput, CacheError, VantageError


@dataclass(frozen=True)
class Kind:
    """One arrangement, and what may be expected of it."""

    name: str
    capacity: int | None = None
    window: int | None = None
    draft: int | None = None  # how far a windowed cache can be taken back; None: anywhere
    block: int = 3
    device: bool = False  # nothing may be read

    def ledger(self, batch: int) -> Ledger:
        if self.name == "ring":
            return Ring(batch, window=self.window or 1, draft=self.draft or 0)
        if self.name == "paged":
            pool = Pool(None if self.capacity is None else self.capacity * batch, self.block)
            return Paged(batch, pool, window=self.window, draft=self.draft)
        if self.name == "static":
            return Static(batch, self.capacity or 1)
        return Contiguous(batch, capacity=self.capacity, window=self.window)

    @property
    def lossy(self) -> bool:
        return self.draft is not None


SETTINGS = settings(max_examples=min(50, settings().max_examples), stateful_step_count=16)

KINDS = [
    Kind("contiguous"),
    Kind("contiguous", capacity=20),
    Kind("contiguous", window=3),
    Kind("contiguous", device=True),
    Kind("ring", window=4, draft=0),
    Kind("ring", window=3, draft=2),
    Kind("ring", window=1, draft=0),
    Kind("ring", window=2, draft=3, device=True),
    Kind("static", capacity=20),
    Kind("static", capacity=20, device=True),
    Kind("paged"),
    Kind("paged", capacity=12),
    Kind("paged", window=4),
    Kind("paged", window=4, draft=1, block=2),
    Kind("paged", window=1, draft=0, block=1),
    Kind("paged", device=True, window=3, draft=2, block=2),
]


@dataclass
class Pair:
    """A cache and what it should hold."""

    cache: ModelCache
    oracle: Oracle
    furthest: list[int]  # the highest order + 1 that each row ever reached: a window lets go by it


class Machine(RuleBasedStateMachine):
    kind: Kind
    segmented: bool

    @initialize(batch=st.integers(1, 3), segmented=st.booleans())
    def begin(self, batch: int, segmented: bool) -> None:
        self.uid = 0
        self.segmented = segmented
        self.pool: Pool | None = None
        cache = model_cache(self.kind.ledger(batch))
        if isinstance(cache.ledgers[0], Paged):
            self.pool = cache.ledgers[0].pool
        self.pairs = [Pair(cache, Oracle([[] for _ in range(batch)]), [0] * batch)]

    # ---- drawing

    def token(self, order: int, shift: int) -> Token:
        self.uid += 1
        segment = (self.uid % 3) if self.segmented else None
        return Token(order, order + shift, segment, self.uid)

    def chunk(self, pair: Pair, data: st.DataObject) -> Chunk:
        rows = len(pair.oracle.rows)
        ends = pair.oracle.next()
        shift = data.draw(st.sampled_from([0, 0, 5]))
        known = "read"
        if self.kind.device:
            known = data.draw(
                st.sampled_from(["read", "counts"] + (["nothing"] if self.kind.name not in ("paged", "static") else []))
            )
        if data.draw(st.booleans()):  # equal rows, no empty place
            width = data.draw(st.integers(1, 7))
            if not shift and not self.segmented and len(set(ends)) == 1 and known == "read":
                self.uid += rows * width
                return plain(rows, ends[0], width, self.uid - rows * width + 1)
            patterns = [[True] * width] * rows
        else:
            width = data.draw(st.integers(1, 6))
            pattern = st.lists(st.booleans(), min_size=width, max_size=width)
            patterns = data.draw(st.lists(pattern, min_size=rows, max_size=rows))
        table = []
        for end, pattern in zip(ends, patterns, strict=True):
            orders = iter(range(end, end + width))
            table.append([self.token(next(orders), shift) if real else None for real in pattern])
        return chunk_of(table, known, self.segmented)

    def shown_since(self, pair: Pair, ends: list[int]) -> list[int]:
        """From which order on a query at ``ends`` must be shown everything."""
        window = self.kind.window
        return [0] * len(ends) if window is None else [end - window + 1 for end in ends]

    # ---- the rules

    @rule(data=st.data(), which=st.integers(0, 9))
    def a_pass(self, data: st.DataObject, which: int) -> None:
        pair = self.pairs[which % len(self.pairs)]
        chunk = self.chunk(pair, data)
        before = pair.oracle.next()
        try:
            views = run(pair.cache, chunk)
        except CacheError:
            assert self.kind.capacity is not None
            return
        pair.oracle.append(chunk)
        pair.furthest = [max(a, b) for a, b in zip(pair.furthest, pair.oracle.next(), strict=True)]
        assert views[0].pos is views[1].pos
        for layer, view in enumerate(views):
            check_view(view, pair.oracle, layer, self.shown_since(pair, before))

    @rule(data=st.data(), which=st.integers(0, 9), after=st.integers(0, 2))
    def a_pass_that_fails(self, data: st.DataObject, which: int, after: int) -> None:
        pair = self.pairs[which % len(self.pairs)]
        chunk = self.chunk(pair, data)
        try:
            fail(pair.cache, chunk, after)
        except CacheError:
            assert self.kind.capacity is not None
            return
        grown = [len([t for t in row if t]) for row in chunk.rows]
        if self.kind.name == "ring":  # what was half written is let go, so it cannot be taken back so far
            ends = [end + n for end, n in zip(pair.oracle.next(), grown, strict=True)]
            pair.furthest = [max(a, b) for a, b in zip(pair.furthest, ends, strict=True)]

    @rule(data=st.data(), which=st.integers(0, 9))
    def a_crop(self, data: st.DataObject, which: int) -> None:
        pair = self.pairs[which % len(self.pairs)]
        ends = pair.oracle.next()
        back = data.draw(st.lists(st.integers(-1, 8), min_size=len(ends), max_size=len(ends)))
        if data.draw(st.booleans()):
            to: int | list[int] = max(0, max(ends) - back[0])
            rows = [to] * len(ends)
        else:
            to = rows = [max(0, end - n) for end, n in zip(ends, back, strict=True)]
        allowed = [
            n >= end or far - n <= (self.kind.draft or 0) for n, end, far in zip(rows, ends, pair.furthest, strict=True)
        ]
        try:
            pair.cache.crop(to)
        except CacheError:
            assert self.kind.lossy
            assert not all(allowed), f"{to} is within the draft of {self.kind.draft}"
            return
        pair.oracle.crop(rows)

    @rule(data=st.data(), which=st.integers(0, 9))
    def a_reorder(self, data: st.DataObject, which: int) -> None:
        pair = self.pairs[which % len(self.pairs)]
        rows = len(pair.oracle.rows)
        index = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=3))
        pair.cache.reorder(index)
        pair.oracle.reorder(index)
        pair.furthest = [pair.furthest[i] for i in index]

    @precondition(lambda self: len(self.pairs) < 3)
    @rule(which=st.integers(0, 9))
    def a_fork(self, which: int) -> None:
        pair = self.pairs[which % len(self.pairs)]
        self.pairs.append(Pair(pair.cache.fork(), pair.oracle.fork(), list(pair.furthest)))

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(which=st.integers(0, 9), drop=st.booleans())
    def an_end(self, which: int, drop: bool) -> None:
        pair = self.pairs.pop(which % len(self.pairs))
        if not drop:
            pair.cache.free()
            pair.cache.free()
            assert not any(pair.cache.tokens)

    @rule(data=st.data(), which=st.integers(0, 9))
    def a_refusal(self, data: st.DataObject, which: int) -> None:
        """A row that steps back, or in a ring or a pool forward, is refused: see the invariant."""
        pair = self.pairs[which % len(self.pairs)]
        ends = pair.oracle.next()
        steps = [-1] if self.kind.name == "contiguous" else [-1, 1]
        row = data.draw(st.integers(0, len(ends) - 1))
        if self.kind.device or ends[row] == 0:
            return
        wrong = ends[row] + data.draw(st.sampled_from(steps))
        table: list[list[Token | None]] = [[self.token(end, 0)] for end in ends]
        table[row] = [self.token(wrong, 0)]
        with pytest.raises((BadInput, CacheError)):
            run(pair.cache, chunk_of(table, segmented=self.segmented))

    # ---- what always holds

    @invariant()
    def all_is_as_the_lists_say(self) -> None:
        for pair in self.pairs:
            ends = pair.oracle.next()
            upto = pair.cache.next_positions
            assert upto.order.tolist() == ends
            assert upto.host is None or {upto.host} == set(ends)
            assert pair.cache.bytes == sum(t.nbytes for c in pair.cache.layers for t in c.store.tensors)
            assert pair.cache.tokens == tuple(len(row) for row in pair.oracle.rows)
            if pair.cache.ledgers[0].holding:
                for layer, cache in enumerate(pair.cache.layers):
                    since = self.shown_since(pair, ends) if self.kind.lossy else [0] * len(ends)
                    check_view(cache.view(), pair.oracle, layer, since)
            else:
                assert not any(pair.oracle.rows)

    @invariant()
    def blocks_are_counted(self) -> None:
        if self.pool is not None:
            uses: dict[int, int] = {}
            for pair in self.pairs:
                ledger = pair.cache.ledgers[0]
                assert isinstance(ledger, Paged)
                for row in ledger._state.rows:
                    assert len(row.blocks) == -(-row.tokens // self.pool.block) - row.gone
                    for block in row.blocks:
                        uses[block] = uses.get(block, 0) + 1
            assert [self.pool.uses(b) for b in range(1, self.pool.blocks + 1)] == [
                uses.get(b, 0) for b in range(1, self.pool.blocks + 1)
            ]
            assert self.pool.free == self.pool.blocks - len(uses)

    def teardown(self) -> None:
        self.pairs.clear()
        if self.pool is not None:
            assert self.pool.free == self.pool.blocks


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(str(x) for x in vars(k).values()))
def test_holds_what_lists_hold(kind: Kind) -> None:
    machine = type("Machine", (Machine,), {"kind": kind})
    with device_like(kind.device):
        run_state_machine_as_test(machine, settings=SETTINGS)


def test_errors_are_one_family() -> None:
    assert issubclass(CacheError, VantageError)
