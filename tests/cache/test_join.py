"""Rows of several caches as rows of one, and back: nothing is copied, nothing lost, no block leaks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from tests.attention.helpers import sharpen
from tests.cache.helpers import (
    Oracle,
    Token,
    check_view,
    chunk_of,
    contiguous,
    device_like,
    model_cache,
    paged,
    plain,
    ragged,
    run,
)
from tests.sampling import examples
from vantage.cache import ModelCache, Paged, Pool
from vantage.cache.blocks import wanted
from vantage.errors import BadInput, CacheError, Refused
from vantage.model import build, decoder, encoder_decoder
from vantage.spec.positions import Known

REACH = 3


def shown(cache, oracle):
    """What is looked at is what the oracle holds, in every layer."""
    for layer, one in enumerate(cache.layers):
        if cache.ledgers[0].holding:
            ledger = cache.ledgers[0]
            gone = [0] * len(oracle.rows) if ledger._draft is None else [n - ledger._window + 1 for n in cache.tokens]
            check_view(one.view(), oracle, layer, gone)
    assert cache.tokens == tuple(len(row) for row in oracle.rows)


def grown(cache, oracle, lengths, uid):
    chunk = ragged(oracle.next(), lengths, uid)
    views = run(cache, chunk)
    oracle.append(chunk)
    for layer, view in enumerate(views):
        hidden = 10**6 if cache.ledgers[0]._window is None else cache.ledgers[0]._window - 1
        since = [max(0, t - n - hidden) for t, n in zip(cache.tokens, lengths, strict=True)]
        check_view(view, oracle, layer, since)


@pytest.mark.parametrize("window", [None, REACH])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("lengths", [(5, 5, 5), (1, 9, 4), (4, 0, 8)])
def test_joined_rows_go_on_together_and_apart(lengths, window, on_device):
    with device_like(on_device):
        parent = paged(1, 200, window=window)
        parts, oracles = [parent.fresh(1) for _ in lengths], [Oracle([[]]) for _ in lengths]
        for i, n in enumerate(lengths):
            if n:
                grown(parts[i], oracles[i], [n], 100 * i)
        whole, oracle = ModelCache.join(parts), Oracle([o.rows[0] for o in oracles])
        assert [part.tokens for part in parts] == [(0,)] * 3
        shown(whole, oracle)
        for step in range(6):
            grown(whole, oracle, [1] * 3, 1000 + 3 * step)
        back = whole.split()
        assert whole.tokens == (0,) * 3
        for i, part in enumerate(back):
            mine = Oracle([oracle.rows[i]])
            shown(part, mine)
            grown(part, mine, [i + 1], 2000 + 10 * i)
        used = parent.ledgers[0].pool
        assert used.blocks - used.free == sum(-(-(n + 7 + i) // 4) for i, n in enumerate(lengths))
        for part in back:
            part.free()
        assert used.free == used.blocks


def test_no_key_is_copied_by_joining():
    parent = paged(1, 64)
    parts = [parent.fresh(1) for _ in range(2)]
    for i, part in enumerate(parts):
        grown(part, Oracle([[]]), [3 + i], 10 * i)
    stores = [layer.store for layer in parent.layers]
    before = [t.clone() for store in stores for t in store.tensors]
    blocks = [part.ledgers[0]._state.rows[0].blocks for part in parts]
    whole = ModelCache.join(parts)
    assert [layer.store for layer in whole.layers] == stores
    assert [row.blocks for row in whole.ledgers[0]._state.rows] == blocks
    after = [t for store in stores for t in store.tensors]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_rows_that_do_not_begin_at_0():
    whole = paged(2, 64)
    run(whole, plain(2, 3, 4))
    parts = whole.split()
    assert [part.layers[0].view().pos.order.tolist() for part in parts] == [[[3, 4, 5, 6]]] * 2
    assert ModelCache.join(parts).layers[0].view().pos.order.tolist() == [[3, 4, 5, 6]] * 2


def test_a_row_alone_has_no_empty_place_and_the_host_knows_it():
    with device_like():
        whole = paged(2, 64)
        run(whole, ragged([0, 0], [5, 2]))
        parts = whole.split()
        known = [part.layers[0].view().pos.known for part in parts]
        assert [(k.counts, k.empty) for k in known] == [((5,), False), ((2,), False)]
        assert [part.next_positions.order.tolist() for part in parts] == [[5], [2]]


@pytest.mark.parametrize(
    ("starts", "lengths", "known"),
    [
        ([0, 0], [5, 2], Known(None, (0, 4), (0, 4), (5, 2), True, False)),
        ([0, 0], [2, 5], Known(None, (0, 4), (0, 4), (2, 5), True, False)),
        ([3, 0], [2, 2], Known(None, (0, 4), (0, 4), (2, 2), False, False)),
        ([3, 0], [2, 0], Known(None, (3, 4), (3, 4), (2, 0), True, False)),
    ],
)
def test_what_the_host_knows_of_joined_rows(starts, lengths, known):
    with device_like():
        parent = paged(1, 64)
        parts = [parent.fresh(1) for _ in starts]
        for part, start, n in zip(parts, starts, lengths, strict=True):
            if n:
                run(part, plain(1, start, n))
        assert ModelCache.join(parts).layers[0].view().pos.known == known


def test_rows_with_positions_of_their_own_are_joined():
    parent = paged(1, 64)
    parts = [parent.fresh(1) for _ in range(3)]
    for part, n in zip(parts, (5, 2, 6), strict=True):
        run(part, chunk_of([[Token(i, 2 * i, None, i) for i in range(n)]]))
    parts[2].crop(4)
    where = ModelCache.join(parts).layers[0].view().pos
    assert where.order.tolist() == [[0, 1, 2, 3, 4], [0, 1, -1, -1, -1], [0, 1, 2, 3, -1]]
    assert where.pos.tolist() == [[0, 2, 4, 6, 8], [0, 2, -1, -1, -1], [0, 2, 4, 6, -1]]


@pytest.mark.parametrize("mode", [False, True])
def test_joined_tables_are_no_inference_tensors(mode):
    with torch.inference_mode(mode):
        parent = paged(1, 64)
        parts = [parent.fresh(1) for _ in range(2)]
        for i, part in enumerate(parts):
            run(part, ragged([0], [3 + i]))
        whole = ModelCache.join(parts)
        where = whole.layers[0].view().pos
    assert not where.order.is_inference()
    assert not where.pos.is_inference()
    run(whole, ragged([3, 4], [1, 1]))


def test_wants_says_what_a_pass_takes():
    parent = paged(1, 64, block=4)
    a, pool, oracle = parent.fresh(1), parent.ledgers[0].pool, Oracle([[]])
    for n, uid in ((3, 0), (1, 5), (1, 6), (9, 7)):
        free, wanted = pool.free, a.ledgers[0].wants(n)
        grown(a, oracle, [n], uid)
        assert free - pool.free == wanted
    b = a.fork()  # 14 tokens: the last block is shared and part full
    assert b.ledgers[0].wants(1) == 1
    assert b.ledgers[0].wants(3) == 2


# ---- refused, with nothing changed


def test_what_cannot_be_joined_is_refused():
    a, b = paged(1, 64), paged(1, 64)
    grown(a, Oracle([[]]), [3], 0)
    with pytest.raises(CacheError, match="different pools"):
        ModelCache.join([a, b])
    with pytest.raises(BadInput, match="with itself"):
        ModelCache.join([a, a])
    with pytest.raises(BadInput, match="at least one"):
        ModelCache.join([])
    with pytest.raises(Refused, match="only paged"):
        ModelCache.join([contiguous(1)])
    with pytest.raises(Refused, match="only paged"):
        contiguous(2).split()
    other = a.fresh(1)
    other.length = 7
    with pytest.raises(CacheError, match="lengths None and 7"):
        ModelCache.join([a, other])
    other = a.fresh(1)
    other.owner = object()
    with pytest.raises(CacheError, match="another model"):
        ModelCache.join([a, other])
    with a.step(ragged([3], [1]).pos), pytest.raises(CacheError, match="running"):
        ModelCache.join([a, a.fresh(1)])
    assert a.tokens == (4,)


def test_rows_with_and_without_segments_are_refused():
    a = paged(1, 64)
    b = a.fresh(1)
    run(a, chunk_of([[Token(0, 0, 0, 0), Token(1, 1, 0, 1)]], segmented=True))
    run(b, ragged([0], [3]))
    with pytest.raises(BadInput, match="segments"):
        ModelCache.join([a, b])
    assert (a.tokens, b.tokens) == ((2,), (3,))
    c = a.fresh(1)
    run(c, chunk_of([[Token(0, 0, 0, 5)]], segmented=True))
    whole = ModelCache.join([a, c, a.fresh(1)])
    assert whole.tokens == (2, 1, 0)
    assert whole.layers[0].view().pos.segment.tolist() == [[0, 0], [0, -1], [-1, -1]]


# ---- real models


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 5])
def test_a_model_reads_joined_rows_as_it_reads_them_alone(window):
    model = sharpen(build(decoder(vocab=11, width=16, layers=2, heads=4, kv_heads=2, window=window)).double())
    rows = [torch.randint(0, 11, (1, n), generator=torch.Generator().manual_seed(n)) for n in (3, 12, 7)]
    parent = model.new_cache(kind="paged", capacity=200, block=4)
    parts = [parent.fresh(1) for _ in rows]
    for row, part in zip(rows, parts, strict=True):
        model(row[:, :-2], cache=part)
    whole = ModelCache.join(parts)
    for i in (-2, -1):
        got = model(torch.cat([row[:, i : (i + 1) or None] for row in rows]), cache=whole)
    for row, logits in zip(rows, got, strict=True):
        torch.testing.assert_close(logits[-1], model(row)[0, -1], rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_sources_of_unequal_length_are_joined_and_split(layers):
    model = sharpen(build(encoder_decoder(vocab=11, width=16, layers=layers, heads=4)).double())
    draw = torch.Generator().manual_seed(0)
    sources = [torch.randint(0, 11, (1, n), generator=draw) for n in (2, 9, 5)]
    rows = [torch.randint(0, 11, (1, n), generator=draw) for n in (4, 6, 3)]
    parent = model.new_cache(kind="paged", capacity=200, block=4)
    parts = [parent.fresh(1) for _ in rows]
    for row, source, part in zip(rows, sources, parts, strict=True):
        model(row[:, :-2], source=source, cache=part)
    whole = ModelCache.join(parts)
    assert not any(part.has_memory for part in parts)
    assert whole.cross[0].view().pos.order.tolist() == [
        [*range(n), *[-1] * (9 - n)] for n in (2, 9, 5)
    ]  # as wide as the longest
    wanted = [model(row, source=source)[0] for row, source in zip(rows, sources, strict=True)]
    got = model(torch.cat([row[:, -2:-1] for row in rows]), cache=whole)
    for logits, want in zip(got, wanted, strict=True):
        torch.testing.assert_close(logits[-1], want[-2], rtol=1e-9, atol=1e-9)
    for row, part, want in zip(rows, whole.split(), wanted, strict=True):
        torch.testing.assert_close(model(row[:, -1:], cache=part)[0, -1], want[-1], rtol=1e-9, atol=1e-9)
    with pytest.raises(CacheError, match="with a source"):
        ModelCache.join([parent.fresh(1), part])


# ---- any order of events


class Pools(RuleBasedStateMachine):
    """Caches over one small pool, forked, joined, split, cropped and dropped: every block is counted."""

    caches = Bundle("caches")

    @initialize(window=st.sampled_from([None, REACH]), draft=st.sampled_from([None, 1]), gather=st.booleans())
    def begin(self, window, draft, gather):
        self.pool = Pool(40, 2)
        self.draft = None if window is None else draft
        self.parent = model_cache(Paged(1, self.pool, window=window, draft=self.draft, gather=gather))
        self.live: list[tuple[ModelCache, Oracle]] = []
        self.uid = 0

    def keep(self, cache, oracle):
        self.live.append((cache, oracle))
        return cache, oracle

    @rule(target=caches)
    def new(self):
        return self.keep(self.parent.fresh(1), Oracle([[]]))

    @rule(one=caches, data=st.data())
    def append(self, one, data):
        cache, oracle = one
        lengths = data.draw(st.lists(st.integers(0, 4), min_size=cache.batch, max_size=cache.batch).filter(any))
        before, rows = cache.tokens, cache.ledgers[0]._state.rows
        if wanted(self.pool, rows, lengths) > self.pool.free:
            with pytest.raises(CacheError, match="out of blocks"):
                grown(cache, oracle, lengths, self.uid)
            assert cache.tokens == before
        else:
            grown(cache, oracle, lengths, self.uid)
        self.uid += 100

    @rule(target=caches, one=caches)
    def fork(self, one):
        return self.keep(one[0].fork(), one[1].fork())

    @rule(target=caches, some=st.lists(consumes(caches), min_size=1, max_size=3))
    def join(self, some):
        self.live = [pair for pair in self.live if all(pair[0] is not one[0] for one in some)]
        whole = ModelCache.join([cache for cache, _ in some])
        return self.keep(whole, Oracle([row for _, oracle in some for row in oracle.rows]))

    @rule(target=caches, one=consumes(caches))
    def split(self, one):
        self.live = [pair for pair in self.live if pair[0] is not one[0]]
        parts = zip(one[0].split(), one[1].rows, strict=True)
        return multiple(*(self.keep(part, Oracle([row])) for part, row in parts))

    @rule(one=caches, data=st.data())
    def crop(self, one, data):
        back = 99 if self.draft is None else self.draft  # what has left a window may be gone
        to = [data.draw(st.integers(max(0, n - back), n)) for n in one[0].tokens]
        one[0].crop(to)
        one[1].crop(to)

    @rule(one=consumes(caches))
    def free(self, one):
        self.live = [pair for pair in self.live if pair[0] is not one[0]]
        one[0].free()

    @invariant()
    def every_block_is_counted(self):
        if not hasattr(self, "pool"):
            return
        rows = [row for cache, _ in self.live for row in cache.ledgers[0]._state.rows]
        uses = dict.fromkeys(range(1, self.pool.blocks + 1), 0)
        for row in rows:
            for block in row.blocks:
                uses[block] += 1
        assert [self.pool.uses(block) for block in uses] == list(uses.values())
        assert self.pool.free == sum(n == 0 for n in uses.values())

    @invariant()
    def every_row_is_what_it_was_told(self):
        for cache, oracle in getattr(self, "live", []):
            shown(cache, oracle)

    def teardown(self):
        for cache, _ in getattr(self, "live", []):
            cache.free()
        assert not hasattr(self, "pool") or self.pool.free == self.pool.blocks


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=examples(60), stateful_step_count=25)
