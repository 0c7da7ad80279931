"""All layers as one: passes that are kept whole or not at all, and what is done between them."""

import pytest
import torch

from tests.cache.helpers import (
    DK,
    DV,
    F64,
    Chunk,
    G,
    Oracle,
    Token,
    check_view,
    chunk_of,
    device_like,
    fail,
    plain,
    ragged,
    run,
)
from tests.cache.saving import again
from vantage.cache import CACHES, Contiguous, LayerCache, LayerPlan, ModelCache, Paged, Ring, Static, Store, make_cache
from vantage.cache.codecs import Int8Codec, PlainCodec, SingleCodec
from vantage.cache.kinds.paged import PagedCache
from vantage.cache.kinds.quantised import QuantisedCache
from vantage.cache.report import Holding
from vantage.errors import BadInput, CacheError, Refused
from vantage.spec.kept import StateShape
from vantage.spec.masks import Causal, Chunked, Everything, Nothing, Prefix, SameSegment, Window
from vantage.spec.positions import Positions

GLOBAL, LOCAL = Causal(), Causal() & Window(3)


def plan(*masks, **options):
    return [LayerPlan(G, DK, DV, mask, **options) for mask in masks]


def make(*masks, batch=1, cross=(), **options) -> ModelCache:
    return make_cache(plan(*masks), batch=batch, dtype=F64, cross=plan(*cross), **options)


def test_layers_of_one_arrangement_share_a_ledger():
    cache = make(LOCAL, LOCAL, GLOBAL, Causal() & Window(5), GLOBAL, kind="ring")
    a, b, c, d, e = (layer.ledger for layer in cache.layers)
    assert a is b
    assert c is e
    assert len({id(x) for x in (a, c, d)}) == 3
    assert cache.ledgers == (a, c, d)
    assert isinstance(a, Ring)
    assert isinstance(c, Contiguous)
    assert (a.capacity, d.capacity) == (3, 5)
    stores = [layer.store for layer in cache.layers]
    assert len({id(s) for s in stores}) == 5


@pytest.mark.parametrize("kind", CACHES)
def test_every_kind_holds_what_it_gets(kind):
    cache = make(LOCAL, GLOBAL, kind=kind, batch=2)
    chunks = [plain(2, 0, 5), ragged([5, 5], [2, 1], uid=20), ragged([7, 6], [1, 1], uid=40)]
    oracle = Oracle([[], []])
    for chunk in chunks:
        before = oracle.next()
        views = run(cache, chunk)
        oracle.append(chunk)
        if kind not in ("quantised", "low-bit", "heavy-hitters", "snapkv"):  # two round, two have a row for each head
            check_view(views[0], oracle, 0, [n - 2 for n in before])
            check_view(views[1], oracle, 1, [0, 0])
    assert cache.tokens == (8, 7)
    assert cache.next_positions.order.tolist() == [8, 7]
    assert cache.bytes == sum(t.nbytes for layer in cache.layers for t in layer.store.tensors)


def test_what_each_kind_is_made_of():
    kinds = {kind: make(LOCAL, GLOBAL, kind=kind, capacity=40, batch=2) for kind in CACHES}
    assert [type(x) for x in kinds["contiguous"].ledgers] == [Contiguous, Contiguous]
    assert [type(x) for x in kinds["ring"].ledgers] == [Ring, Contiguous]
    assert [type(x) for x in kinds["paged"].ledgers] == [Paged, Paged]
    assert [type(x) for x in kinds["quantised"].ledgers] == [Contiguous, Contiguous]
    assert isinstance(kinds["quantised"].layers[0].store.codec, Int8Codec)
    assert isinstance(kinds["paged"].layers[0].store.codec, PlainCodec)
    assert kinds["contiguous"].ledgers[1].capacity == 40
    assert kinds["ring"].ledgers[1].capacity == 40
    pool = kinds["paged"].ledgers[1].pool
    assert (pool.blocks, pool.block) == (2 * 3, 16)  # three blocks a row hold 40
    assert kinds["paged"].ledgers[0].pool is not pool
    assert make(GLOBAL, kind="paged", block=5).ledgers[0].pool.block == 5
    assert make(GLOBAL, kind="paged").ledgers[0].capacity is None
    paged = make(GLOBAL, kind=QuantisedCache(PagedCache(block=4)))
    assert isinstance(paged.layers[0].store.codec, Int8Codec)
    assert paged.ledgers[0].name == "paged, growing pool of 4 tokens a block"
    assert isinstance(make(GLOBAL, cross=[Everything()], kind="quantised").cross[0].store.codec, Int8Codec)
    assert isinstance(make(GLOBAL, cross=[Everything()], kind="quantised").cross[0].store.codec, Int8Codec)
    assert isinstance(make(GLOBAL, cross=[Everything()]).cross[0].store.codec, PlainCodec)


def test_defaults():
    cache = make_cache(plan(GLOBAL))
    assert isinstance(cache.ledgers[0], Contiguous)
    assert (cache.batch, cache.length, cache.owner, cache.recomputed) == (1, None, None, 0)
    assert cache.ledgers[0].capacity is None
    assert cache.layers[0].store.tensors[0].dtype == torch.float32
    assert make_cache(plan(GLOBAL), length=99).length == 99
    assert make_cache(plan(GLOBAL), kind="paged").ledgers[0].pool.block == 16


def test_a_layer_of_states_alone_forgets_nothing():
    states_alone = LayerPlan(0, 0, 0, GLOBAL, states=(StateShape((2,)),))
    keyed = LayerPlan(1, DK, DV, GLOBAL)
    forgets = make_cache([keyed, states_alone, states_alone], kind="sinks")
    assert [layer.ledger.kind for layer in forgets.layers] == ["selective", "contiguous", "contiguous"]
    assert len(forgets.ledgers) == 2
    assert len(make_cache([keyed, states_alone]).ledgers) == 1


def test_a_draft_for_windowed_layers():
    assert make(LOCAL, kind="ring").ledgers[0].capacity == 3
    assert make(LOCAL, kind="ring", draft=2).ledgers[0].capacity == 5
    keeps, lets_go = make(LOCAL, GLOBAL, kind="paged", block=2), make(LOCAL, GLOBAL, kind="paged", block=2, draft=0)
    for cache in (keeps, lets_go):
        run(cache, plain(1, 0, 9))
    assert keeps.holds().layers[0].rows[0].evicted == 0
    assert lets_go.holds().layers[0].rows[0].evicted == 6
    assert lets_go.holds().layers[1].rows[0].evicted == 0


def test_one_stream_layers():
    cache = make_cache([LayerPlan(1, 6, 4, GLOBAL, single_stream=True)], kind="contiguous")
    assert isinstance(cache.layers[0].store.codec, SingleCodec)
    quantised = make_cache([LayerPlan(1, 6, 4, GLOBAL, single_stream=True)], kind="quantised")
    assert quantised.layers[0].store.codec == Int8Codec(SingleCodec(1, 6, 4))


def test_states_are_kept_where_a_row_may_be_taken_back_or_begun():
    """After the last two of 20 tokens, since one can always be taken back; in a pool after every four blocks."""
    layers, pos = plan(GLOBAL, states=(StateShape((2,)),)), Positions.arange(1, 20)
    for options, wanted in (
        ({}, (18, 19)),
        ({"draft": 3}, (16, 17, 18, 19)),
        ({"kind": "paged", "block": 2}, (7, 15, 18, 19)),
    ):
        layer = make_cache(layers, **options).layers[0]
        assert layer.states.wanted(pos) == wanted
        layer.states.write(pos, wanted, [(torch.zeros(1, 2),)] * len(wanted))
        layer.states.commit()
        assert layer.bytes == layer.store.bytes + layer.states.bytes > layer.store.bytes
    assert make(GLOBAL).layers[0].own_states is None


def test_reach():
    assert LayerPlan(1, 1, 1, GLOBAL).reach is None
    assert LayerPlan(1, 1, 1, LOCAL).reach == 3
    assert LayerPlan(1, 1, 1, Nothing()).reach == 1
    assert LayerPlan(1, 1, 1, Causal() & Chunked(7)).reach == 7


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("contigous", "Did you mean 'contiguous'"),
        ("page", "Did you mean 'paged'"),
        ("quantized", "mean 'quantised'"),
        ("quant", "mean 'quantised'"),
    ],
)
def test_an_unknown_kind_is_refused_with_the_nearest(kind, says):
    with pytest.raises(BadInput, match=says):
        make(GLOBAL, kind=kind)


def test_nonsense_is_refused():
    with pytest.raises(
        BadInput, match=r"no kind of cache is called 'zzzz'\. There are: contiguous, ring, paged, static, quantised"
    ):
        make(GLOBAL, kind="zzzz")
    with pytest.raises(Refused, match="no layer of this model has one: use kind='contiguous'"):
        make(GLOBAL, Everything(), kind="ring")
    for name in ("capacity", "length"):
        with pytest.raises(BadInput, match=f"{name}=0: give at least 1"):
            make(GLOBAL, **{name: 0})
        make(GLOBAL, **{name: 1})
    with pytest.raises(BadInput, match="draft=-1"):
        make(LOCAL, kind="ring", draft=-1)
    make(LOCAL, kind="ring", draft=0)
    with pytest.raises(BadInput, match="no layers"):
        make()
    with pytest.raises(BadInput, match="0 rows"):
        make(GLOBAL, batch=0)


# ---- passes


def test_a_refusal_of_one_ledger_leaves_all_as_they_were():
    cache = make(LOCAL, GLOBAL, kind="ring", capacity=6)
    run(cache, plain(1, 0, 5))
    before = cache.holds()
    with pytest.raises(CacheError, match="full"):
        run(cache, plain(1, 5, 2, uid=5))
    assert cache.holds() == before
    run(cache, plain(1, 5, 1, uid=5))
    assert cache.tokens == (6,)


@pytest.mark.parametrize("kind", ["contiguous", "ring", "paged"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_pass_that_fails_leaves_all_as_it_was(kind, after):
    cache = make(LOCAL, GLOBAL, kind=kind, batch=2)
    chunk = plain(2, 0, 7)
    run(cache, chunk)
    before = cache.holds()
    for bad in (plain(2, 7, 5, uid=90), ragged([7, 7], [6, 2], uid=70)):
        fail(cache, bad, after)
        assert cache.holds() == before
        assert cache.next_positions.host == 7
    truth = Oracle([list(row) for row in chunk.rows])
    good = plain(2, 7, 1, uid=50)
    views = run(cache, good)
    truth.append(good)
    check_view(views[0], truth, 0, [5, 5])
    check_view(views[1], truth, 1, [0, 0])


def test_a_pass_ends_before_the_next_begins():
    cache = make(GLOBAL)
    with cache.step(Positions.arange(1, 1)) as same:
        assert same is cache
        with pytest.raises(CacheError, match="already running"):
            cache.begin(Positions.arange(1, 1))
        for change in (lambda: cache.crop(0), lambda: cache.reorder([0]), cache.fork, cache.free):
            with pytest.raises(CacheError, match="is running"):
                change()
    assert cache.tokens == (1,)
    cache.abandon()  # nothing is open: nothing happens
    assert cache.tokens == (1,)


def test_a_pass_that_nobody_watched_is_undone_by_who_comes_next():
    cache = make(GLOBAL)
    run(cache, plain(1, 0, 2))
    cache.begin(Positions.arange(1, 3, 2), unwatched=True)
    cache.begin(Positions.arange(1, 1, 2))
    cache.commit()
    assert cache.tokens == (3,)
    cache.begin(Positions.arange(1, 1, 3))
    with pytest.raises(CacheError, match="already running"):
        cache.begin(Positions.arange(1, 1, 3))


def test_an_interrupt_undoes_a_pass_too():
    cache = make(GLOBAL)
    with pytest.raises(KeyboardInterrupt), cache.step(Positions.arange(1, 1)):
        raise KeyboardInterrupt
    assert cache.tokens == (0,)
    run(cache, plain(1, 0, 1))


# ---- several steps at once


def test_room_for_tokens_that_a_kernel_writes():
    cache = make(GLOBAL, LOCAL, batch=2)
    assert not cache.extensible  # nothing says yet where rows begin
    run(cache, plain(2, 10, 3))
    assert cache.extensible
    extensions = cache.extend(4, "kernel")
    assert [(e.first, e.layout.held, e.layout.run) for e in extensions] == [(10, (3, 3), True)] * 2
    assert cache.tokens == (7, 7)
    for layer in cache.layers:
        assert (layer.store.written, layer.store.paths) == (2 * 3 + 2 * 4, {"modules": 2 * 3, "kernel": 2 * 4})
    run(cache, ragged([17, 17], [1, 0]))
    assert not cache.extensible  # rows that differ


def test_one_token_is_enough_to_go_on_from():
    cache = make(GLOBAL)
    run(cache, plain(1, 4, 1))
    assert cache.extensible


@pytest.mark.parametrize("kind", ["ring", "sinks", "kivi"])
def test_where_places_have_no_order_nothing_is_extended(kind):
    cache = make(LOCAL, kind=kind)
    run(cache, plain(1, 0, 3))
    assert not cache.extensible


def test_room_for_all_layers_or_none():
    """The second ledger has no room for four more: the first is taken back to where its rows stood."""
    layers = [LayerCache(ledger, Store(PlainCodec(G, DK, DV, F64), ledger)) for ledger in (Static(1, 9), Static(1, 5))]
    cache = ModelCache(layers)
    run(cache, plain(1, 10, 3))
    with pytest.raises(CacheError, match="full"):
        cache.extend(4, "kernel")
    assert [ledger.tokens for ledger in cache.ledgers] == [(3,), (3,)]


def test_what_keeps_more_than_keys_in_place_is_not_extended():
    for cache in (make(GLOBAL, cross=[Everything()]), make_cache(plan(GLOBAL, states=(StateShape((2,)),)), dtype=F64)):
        run(cache, plain(1, 0, 3))
        assert not cache.extensible


def test_the_nearest_place_to_go_back_to():
    cache = make_cache(plan(GLOBAL, states=(StateShape((2,)),)), dtype=F64)
    pos = Positions.arange(1, 10)
    states = cache.layers[0].states
    states.write(pos, states.wanted(pos), [(torch.zeros(1, 2),)] * 2)
    states.commit()
    assert [cache.nearest_cut(to) for to in (11, 10, 9, 8, 0)] == [10, 10, 9, 0, 0]
    assert make(GLOBAL).nearest_cut(8) == 8


# ---- tokens on several axes


def on_axes(*rows: list[int], starts: list[int]) -> Chunk:
    """Rows of tokens whose highest axis is this, from these orders on."""
    axes = torch.tensor([rows, [[0] * len(row) for row in rows]])
    pos = Positions.of_axes(axes, starts=torch.tensor(starts))
    return Chunk([[Token(starts[b] + i, n, None, n) for i, n in enumerate(row)] for b, row in enumerate(rows)], pos)


def test_how_far_positions_are_ahead_of_the_order():
    cache = make(GLOBAL, batch=2)
    assert cache.next_positions.ahead is None
    run(cache, plain(2, 0, 2))
    assert cache.ahead is None
    run(cache, on_axes([7, 9], [3, 2], starts=[2, 2]))  # the highest of row 0 is 9 at order 3, of row 1 3 at order 3
    assert cache.ahead is not None
    assert cache.ahead.tolist() == [6, 0]
    assert cache.next_positions.ahead is cache.ahead
    assert not cache.extensible
    assert cache.fork().ahead.tolist() == [6, 0]
    run(cache, on_axes([4], [8], starts=[4, 4]))  # row 0 stays at 9 with one token more
    assert cache.ahead.tolist() == [5, 4]
    cache.crop(4)
    assert cache.ahead.tolist() == [6, 0]
    cache.reorder([1, 0, 0])
    assert cache.ahead.tolist() == [0, 6, 6]
    cache.crop(0)
    assert cache.ahead.tolist() == [0, 0, 0]


def test_rows_take_along_how_far_they_are_ahead():
    a = make(GLOBAL, kind="paged")
    b, c = a.fresh(), a.fresh()
    run(b, plain(1, 0, 2))
    run(c, plain(1, 0, 2))
    assert ModelCache.join([b, c]).ahead is None
    run(a, on_axes([7, 9], starts=[0]))
    rows = ModelCache.join([a, b, a.fork()])
    assert rows.ahead is not None
    assert rows.ahead.tolist() == [8, 0, 8]
    assert [one.ahead.tolist() for one in rows.split()] == [[8], [0], [8]]


def test_a_file_knows_how_far_positions_are_ahead_or_behind(tmp_path):
    """Nine patches of an image take three positions: behind them positions are fewer than tokens."""
    cache = make(GLOBAL, batch=2)
    run(cache, on_axes([0, 1, 2] * 3, [5] * 9, starts=[0, 0]))
    assert cache.ahead is not None
    assert again(cache, tmp_path).ahead.tolist() == cache.ahead.tolist() == [-6, -3]


# ---- masks that look ahead


def test_bidirectional_layers_cannot_be_decoded():
    cache = make(GLOBAL, Window(4), batch=2)
    run(cache, plain(2, 0, 3))
    before = cache.holds()
    with pytest.raises(Refused, match=r"tokens from 3 on cannot be appended: under Window\(n=4\).*in one pass"):
        run(cache, plain(2, 3, 1))
    with pytest.raises(Refused, match="tokens from 3 on"):
        run(cache, chunk_of([[Token(3, 9, None, 0)]] * 2))
    assert cache.holds() == before
    run(cache, chunk_of([[None]] * 2))  # nothing comes: nobody missed it
    with pytest.raises(Refused, match="tokens from 3 on"):
        run(cache, chunk_of([[None], [Token(3, 3, None, 0)]]))


def test_a_prefix_must_come_whole():
    cache = make(Causal() | Prefix(4))
    run(cache, plain(1, 0, 4))
    run(cache, plain(1, 4, 1, uid=4))
    cache = make(Causal() | Prefix(4))
    run(cache, plain(1, 0, 3))
    with pytest.raises(Refused, match="from 3 on"):
        run(cache, plain(1, 3, 2, uid=3))


def test_an_empty_cache_may_begin_anywhere():
    cache = make(Everything())
    run(cache, plain(1, 5, 3))
    with pytest.raises(Refused):
        run(cache, plain(1, 8, 1))
    cache.crop(0)
    run(cache, plain(1, 2, 2))


def test_what_is_causal_needs_nothing_more():
    cache = make(Causal() & SameSegment(), LOCAL, Causal() & Chunked(4))
    for start in range(5):
        run(cache, plain(1, start, 1, uid=start))
    assert cache.tokens == (5,)
    assert cache.masks == (Causal() & SameSegment(), LOCAL, Causal() & Chunked(4))


def test_the_start_of_every_row_counts():
    cache = make(Causal() | Prefix(4), batch=3)
    run(cache, ragged([0, 0, 0], [4, 0, 2]))
    with pytest.raises(Refused, match="from 2 on"):
        run(cache, chunk_of([[Token(4, 4, None, 0)], [None], [Token(2, 2, None, 1)]]))
    run(cache, chunk_of([[Token(4, 4, None, 0)], [Token(0, 0, None, 1)], [None]]))
    with pytest.raises(Refused, match="from 1 on"):
        run(cache, chunk_of([[None], [Token(1, 1, None, 1)], [None]]))
    run(cache, chunk_of([[None]] * 3))
    cache.crop([5, 0, 2])
    with pytest.raises(Refused, match="from 2 on"):  # though another row begins at 0
        run(cache, chunk_of([[None], [Token(0, 0, None, 1)], [Token(2, 2, None, 1)]]))


def test_on_a_device_the_lowest_start_counts():
    with device_like():
        cache = make(Causal() | Prefix(4), batch=2)
        run(cache, plain(2, 0, 3))
        with pytest.raises(Refused, match="from 3 on"):
            run(cache, chunk_of([[Token(3, 9, None, 0)]] * 2))
        with pytest.raises(Refused, match="from 3 on"):  # and not the highest
            run(cache, chunk_of([[Token(3, 9, None, 0), Token(4, 12, None, 0)]] * 2))
        run(cache, chunk_of([[Token(3, 9, None, 0)]] * 2, known="nothing"))


def test_a_start_counts_from_its_document():
    """A token's segment is the order of its document's first token."""
    cache = make(Causal() | Prefix(4))
    packed = chunk_of(
        [[Token(i, i, 0, i) for i in range(2)] + [Token(i, i - 2, 2, i) for i in range(2, 5)]], segmented=True
    )
    run(cache, packed)
    with pytest.raises(Refused, match="from 3 on"):
        run(cache, chunk_of([[Token(5, 3, 2, 5)]], segmented=True))
    run(cache, chunk_of([[Token(5, 0, 5, 5), Token(6, 1, 5, 6)]], segmented=True))  # a new document
    with device_like():  # nobody knows where a document began
        run(cache, chunk_of([[Token(7, 2, 5, 7)]], segmented=True))


# ---- between passes


def test_a_crop_is_for_all_layers_or_none():
    cache = make(GLOBAL, LOCAL, kind="ring")
    run(cache, plain(1, 0, 9))
    with pytest.raises(CacheError, match="ring"):
        cache.crop(8)
    assert cache.tokens == (9,)
    assert cache.ledgers[0].tokens == (9,)
    cache = make(GLOBAL, LOCAL, kind="ring", draft=2)
    run(cache, plain(1, 0, 9))
    cache.crop(7)
    assert [ledger.tokens for ledger in cache.ledgers] == [(7,), (7,)]


def test_reorder_moves_stores_and_ledgers():
    cache = make(GLOBAL, LOCAL, kind="ring", batch=2, cross=[Everything()])
    chunk = ragged([0, 0], [5, 3])
    memory = Positions.arange(2, 2)
    with cache.step(chunk.pos):
        for i, layer in enumerate(cache.layers):
            layer.append(chunk.pos, chunk.keys(i), chunk.values(i))
        x = torch.arange(2, dtype=F64)[:, None, None, None].expand(2, G, 2, DK)
        cache.cross[0].append(memory, x, x[..., :DV])
    cache.reorder(torch.tensor([1, 0, 1]))
    assert cache.batch == 3
    rows = [[t for t in row if t] for row in chunk.rows]
    truth = Oracle([rows[1], rows[0], rows[1]])
    check_view(cache.layers[0].view(), truth, 0, [0, 0, 0])
    check_view(cache.layers[1].view(), truth, 1, [1, 3, 1])
    assert cache.cross[0].view().k[:, 0, 0, 0].tolist() == [1, 0, 1]
    with pytest.raises(BadInput, match="rows from 0 to 2"):
        cache.reorder([3])
    assert cache.batch == 3


def test_a_fork_takes_everything_along():
    owner = object()
    cache = make(GLOBAL, LOCAL, kind="ring", owner=owner, length=77, cross=[Everything()])
    cache.recomputed = 4
    run(cache, plain(1, 0, 5))
    other = cache.fork()
    other.belongs_to(owner)
    assert (other.length, other.recomputed, other.masks) == (77, 4, cache.masks)
    assert other.layers[0].ledger is other.ledgers[0]
    assert other.layers[0].ledger is not cache.layers[0].ledger
    assert len(other.cross) == 1
    run(other, plain(1, 5, 1, uid=60))
    assert (cache.tokens, other.tokens) == ((5,), (6,))
    empty = cache.fresh(batch=3)
    assert empty.tokens == (0, 0, 0)
    assert empty.recomputed == 0
    assert empty.length == 77
    assert [type(x) for x in empty.ledgers] == [type(x) for x in cache.ledgers]
    run(empty, plain(3, 0, 1))
    assert cache.fresh().batch == 1


def test_a_mark_is_good_for_one_pass():
    for change in (lambda ledger: ledger.crop(9), lambda ledger: ledger.reorder([0]), lambda ledger: ledger.free()):
        ledger = make(GLOBAL).ledgers[0]
        ledger.place(Positions.arange(1, 3))
        ledger.commit()
        savepoint = ledger.savepoint()
        ledger.place(Positions.arange(1, 1, start=3))
        ledger.roll_back(savepoint)
        ledger.roll_back(savepoint)  # nothing has happened since
        assert ledger.tokens == (3,)
        ledger.place(Positions.arange(1, 1, start=3))
        ledger.commit()
        with pytest.raises(CacheError, match="no longer good"):
            ledger.roll_back(savepoint)
        change(ledger)
        with pytest.raises(CacheError, match="no longer good"):
            ledger.roll_back(savepoint)
        with pytest.raises(CacheError, match="no longer good"):
            make(GLOBAL).ledgers[0].roll_back(ledger.savepoint())


def test_room():
    assert make(GLOBAL).room(10**6)  # no pool: nothing to run out of
    growing = make(GLOBAL, kind="paged", block=4)
    run(growing, plain(1, 0, 4))
    assert growing.room(10**6)
    cache = make(GLOBAL, LOCAL, kind="paged", block=4, capacity=12)
    run(cache, plain(1, 0, 3))
    assert cache.room(9)
    assert not cache.room(10)
    taken = cache.fork()
    assert cache.room(5)  # its last block is shared: one more for the copy
    assert not cache.room(6)
    taken.free()
    assert cache.room(9)


def test_free():
    for kind in ("contiguous", "ring", "paged"):
        cache = make(GLOBAL, LOCAL, kind=kind)
        run(cache, plain(1, 0, 5))
        cache.free()
        assert cache.tokens == (0,)
        assert not cache.layers[1].holding
        run(cache, plain(1, 0, 5))


def test_a_cache_belongs_to_one_model():
    mine, other = object(), object()
    cache = make(GLOBAL, owner=mine)
    cache.belongs_to(mine)
    with pytest.raises(CacheError, match=r"belongs to another model: make one with model.new_cache"):
        cache.belongs_to(other)


# ---- cross-attention


def cross_pass(cache: ModelCache, chunk: Chunk, memory: Positions | None):
    with cache.step(chunk.pos):
        run_layers = [layer.append(chunk.pos, chunk.keys(i), chunk.values(i)) for i, layer in enumerate(cache.layers)]
        assert len(run_layers) == len(cache.layers)
        if memory is None:
            return [layer.view() for layer in cache.cross]
        x = torch.ones(memory.shape[0], G, memory.shape[1], DK, dtype=F64)
        return [layer.append(memory, x, x[..., :DV]) for layer in cache.cross]


def test_cross_attention_appends_once_and_then_looks():
    cache = make(GLOBAL, GLOBAL, batch=2, cross=[Everything(), Everything()])
    memory = Positions.rows([4, 2])
    assert not cache.cross[0].holding
    first = cross_pass(cache, plain(2, 0, 3), memory)
    second = cross_pass(cache, plain(2, 3, 1), None)
    third = cross_pass(cache, plain(2, 4, 1), None)
    assert first[0].pos.order.tolist() == second[0].pos.order.tolist()
    assert second[0].pos is second[1].pos
    assert second[0].pos is third[0].pos
    assert torch.equal(first[0].k, third[0].k)
    cache.crop(1)  # leaves the memory alone
    assert cache.cross[0].view().k.shape == (2, G, 4, DK)
    assert cache.cross[0].ledger.tokens == (4, 2)


def test_a_pass_that_fails_forgets_the_memory_too():
    cache = make(GLOBAL, batch=2, cross=[Everything()])
    chunk, memory = plain(2, 0, 3), Positions.arange(2, 4)
    x = torch.ones(2, G, 4, DK, dtype=F64)
    with pytest.raises(RuntimeError), cache.step(chunk.pos):  # noqa: PT012 (the pass is the statement)
        cache.cross[0].append(memory, x, x[..., :DV])
        raise RuntimeError
    assert not cache.cross[0].holding
    cross_pass(cache, chunk, memory)
    cache.free()
    assert not cache.cross[0].holding


# ---- reports


def test_a_report_prints_itself():
    cache = make(LOCAL, GLOBAL, LOCAL, kind="ring", batch=2, cross=[Everything()])
    run(cache, plain(2, 0, 5))
    report = cache.holds()
    assert report.bytes == cache.bytes
    row = report.layers[0].rows[1]
    assert (row.order, row.pos, row.evicted, row.shared, row.tokens) == (((2, 4),), ((2, 4),), 2, 0, 3)
    assert repr(report) == "\n".join(
        [
            f"3 layers, {cache.bytes:,} bytes",
            "layer 0, 2: ring, window 3",
            "  row 0: 2..4 (3 tokens, 2 evicted)",
            "  row 1: 2..4 (3 tokens, 2 evicted)",
            "layer 1: contiguous, growing",
            "  row 0: 0..4 (5 tokens)",
            "  row 1: 0..4 (5 tokens)",
            "cross-attention 0: contiguous, growing",
            "  row 0: nothing (0 tokens)",
            "  row 1: nothing (0 tokens)",
        ]
    )


def test_a_report_tells_positions_from_order_and_what_is_shared():
    cache = make(GLOBAL, kind="paged", block=2, batch=1)
    run(cache, chunk_of([[Token(0, 5, None, 0), Token(1, 6, None, 1), Token(2, 9, None, 2)]]))
    other = cache.fork()
    row = other.holds().layers[0].rows[0]
    assert str(row) == "0..2 (3 tokens, positions 5..6, 9, 3 shared)"
    assert Holding("contiguous", (row, row)).row_name(1) == "row 1"
    gap = make(GLOBAL, capacity=9)
    run(gap, plain(1, 0, 1))
    assert str(gap.holds().layers[0]) == "contiguous, 9 places\n  row 0: 0 (1 token)"
    run(gap, plain(1, 3, 2))
    assert str(gap.holds().layers[0].rows[0]) == "0, 3..4 (3 tokens)"
    assert gap.holds().layers[0].rows[0].tokens == 3
