"""Places in a pool of blocks."""

import gc

import pytest
import torch

from tests.cache.helpers import (
    Oracle,
    Token,
    check_facts,
    check_view,
    chunk_of,
    device_like,
    fail,
    model_cache,
    paged,
    plain,
    ragged,
    run,
)
from vantage.cache import ModelCache, Paged, Pool
from vantage.cache.blocks import BlockRow, stride
from vantage.cache.facts import Tables
from vantage.cache.moves import Copied, Gathered, PoolPlaces, Strided
from vantage.cache.paged_state import PagedState
from vantage.errors import BadInput, CacheError
from vantage.spec.masks import Causal, Everything, Window, visible
from vantage.spec.positions import Known, Positions


def pool_of(cache):
    return cache.ledgers[0].pool


def truth_of(*chunks):
    oracle = Oracle([[] for _ in chunks[0].rows])
    for chunk in chunks:
        oracle.append(chunk)
    return oracle


def shares_memory(view, cache):
    buffer = cache.layers[0].store.tensors[0]
    start = buffer.data_ptr()
    return start <= view.k.data_ptr() < start + buffer.nbytes


def test_a_single_row_is_a_slice_without_a_copy_however_it_grows():
    cache = paged(1, block=4)
    for start in range(40):
        view = run(cache, plain(1, start, 1, uid=start))[0]
        assert shares_memory(view, cache)
        assert view.pos.known == Known.run(0, 1, start + 1)
    assert pool_of(cache).blocks == 1 + 64 // 4
    step = cache.ledgers[0].look()
    assert step.read == Strided(4, 0, 1, 40)
    check_view(cache.layers[1].view(), Oracle([[Token(i, i, None, i) for i in range(40)]]), 1, [0])


@pytest.mark.parametrize("tokens", [None, 400])
def test_equal_rows_are_a_slice_too(tokens):
    cache = paged(4, tokens=tokens, block=4)
    chunks = [plain(4, 0, 6), *(plain(4, i, 1, uid=4 * i) for i in range(6, 60))]
    for chunk in chunks:
        view = run(cache, chunk)[0]
        assert shares_memory(view, cache), chunk.pos.known.first
    check_view(view, truth_of(*chunks), 0, [0] * 4)
    assert view.pos.known == Known.run(0, 4, 60)
    if tokens:
        assert pool_of(cache).blocks == 100
    chunk = plain(4, 60, 1)
    assert visible(Causal(), chunk.pos.against(run(cache, chunk)[0].pos)) == Everything()


def test_rows_that_move_keep_what_they_hold_and_give_their_old_blocks_back():
    cache = paged(2, block=2)
    pool = pool_of(cache)
    pool._follows = 0
    chunks = [plain(2, 0, 4), plain(2, 4, 1, uid=20)]
    run(cache, chunks[0])
    assert (pool.blocks, pool.free) == (4, 0)
    step = cache.ledgers[0].place(chunks[1].pos)
    assert isinstance(step.write, Copied)
    assert pool.uses(1) == 1  # until it is committed
    for i, layer in enumerate(cache.layers):
        layer.append(chunks[1].pos, chunks[1].keys(i), chunks[1].values(i))
    cache.ledgers[0].commit()
    assert pool.blocks - pool.free == 6
    check_view(cache.layers[1].view(), truth_of(*chunks), 1, [0, 0])


def test_unequal_rows_are_gathered_and_empty_places_are_not_stored():
    cache = paged(2, block=4)
    first = ragged([0, 0], [5, 2], pad="left")
    views = run(cache, first)
    assert views[0].pos.order.tolist() == [[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]]
    assert views[0].pos.known == Known(None, (0, 4), (0, 4), (5, 2), True, False)
    check_view(views[1], truth_of(first), 1, [0, 0])
    pool = pool_of(cache)
    assert pool.blocks - pool.free == 3
    second = ragged([5, 2], [1, 3], uid=30)
    step = cache.ledgers[0].place(second.pos)
    assert isinstance(step.write, PoolPlaces)
    assert isinstance(step.read, Gathered)
    assert step.view_pos.known.counts == (6, 5)


def test_rows_that_become_equal_are_a_slice_again():
    cache = paged(2, tokens=64, block=4)
    first, second = ragged([0, 0], [5, 2]), ragged([5, 2], [0, 3], uid=30)
    run(cache, first)
    view = run(cache, second)[0]
    assert shares_memory(view, cache)
    check_view(view, truth_of(first, second), 0, [0, 0])
    assert view.pos.known == Known(None, (0, 4), (0, 4), (5, 5), False, False)


def test_the_host_must_know_how_many_tokens_come():
    cache = paged(2)
    with pytest.raises(BadInput, match="how many tokens each row gets: make the positions on the host"):
        run(cache, chunk_of([[Token(0, 0, None, 0)]] * 2, known="nothing"))
    assert not cache.layers[0].holding


def test_a_gap_or_a_step_back_is_refused():
    cache = paged(1)
    run(cache, plain(1, 0, 3))
    for wrong in (2, 4):
        with pytest.raises(BadInput, match=f"row 0 got order {wrong} where this cache expects 3:"):
            run(cache, plain(1, wrong, 1))
    assert cache.tokens == (3,)
    run(cache, plain(1, 3, 1))


def test_out_of_blocks_says_so_and_changes_nothing():
    cache = paged(2, tokens=12, block=4)
    first = ragged([0, 0], [5, 3])
    run(cache, first)
    pool = pool_of(cache)
    assert pool.free == 0
    assert cache.ledgers[0].capacity == 12
    report = cache.holds()
    with pytest.raises(CacheError, match="out of blocks: the pool has 3 of 4 tokens, 0 are free and 2 are needed"):
        run(cache, ragged([5, 3], [4, 2], uid=30))
    assert cache.holds() == report
    check_view(cache.layers[0].view(), truth_of(first), 0, [0, 0])
    run(cache, ragged([5, 3], [3, 1], uid=40))
    assert cache.tokens == (8, 4)


def test_a_fork_shares_until_somebody_writes():
    cache = paged(1, block=4)
    first = plain(1, 0, 6)
    run(cache, first)
    pool, size = pool_of(cache), cache.bytes
    other = cache.fork()
    assert other.layers[0].store is cache.layers[0].store
    assert (pool.uses(1), pool.uses(2)) == (2, 2)
    assert other.bytes == size
    assert cache.holds().layers[0].rows[0].shared == 6
    ours, theirs = plain(1, 6, 1, uid=60), plain(1, 6, 3, uid=80)
    run(other, theirs)
    assert (pool.uses(1), pool.uses(2)) == (2, 1)
    assert cache.holds().layers[0].rows[0].shared == 4
    step = cache.ledgers[0].place(ours.pos)
    assert isinstance(step.write, Strided)  # nobody else uses the last block any more
    cache.ledgers[0].roll_back(cache.ledgers[0].savepoint())
    cache.crop(6)
    run(cache, ours)
    check_view(cache.layers[1].view(), truth_of(first, ours), 1, [0])
    check_view(other.layers[1].view(), truth_of(first, theirs), 1, [0])


def test_a_copy_is_undone_when_the_pass_fails():
    cache = paged(1, block=4)
    first = plain(1, 0, 6)
    run(cache, first)
    other = cache.fork()
    pool = pool_of(cache)
    blocks = pool.blocks - pool.free
    fail(other, plain(1, 6, 9, uid=60), after=2)
    assert pool.blocks - pool.free == blocks
    assert (pool.uses(1), pool.uses(2)) == (2, 2)
    check_view(other.layers[0].view(), truth_of(first), 0, [0])
    check_view(cache.layers[0].view(), truth_of(first), 0, [0])


def test_rows_of_one_cache_share_as_well():
    cache = paged(1, block=2)
    first = plain(1, 0, 3)
    run(cache, first)
    cache.reorder([0, 0, 0])
    pool = pool_of(cache)
    assert (pool.uses(1), pool.uses(2)) == (3, 3)
    second = plain(3, 3, 1, uid=30)
    view = run(cache, second)[0]
    check_view(view, Oracle([first.rows[0] + second.rows[b] for b in range(3)]), 0, [0] * 3)
    assert view.pos.known == Known.run(0, 3, 4)  # gathered, and still plain
    assert (pool.uses(1), pool.uses(2)) == (3, 0)
    cache.reorder([2])
    assert pool.uses(1) == 1
    assert pool.blocks - pool.free == 2


def test_crop_gives_blocks_back():
    cache = paged(2, block=4)
    first = ragged([0, 0], [9, 6])
    run(cache, first)
    pool = pool_of(cache)
    assert pool.blocks - pool.free == 5
    cache.crop([8, 9])
    assert pool.blocks - pool.free == 4
    view = cache.layers[0].view()
    assert view.pos.known == Known(None, (0, 7), (0, 7), (8, 6), True, False)
    assert cache.next_positions.order.tolist() == [8, 6]
    cache.crop([3, 3])
    assert pool.blocks - pool.free == 2
    assert cache.layers[0].view().pos.known == Known.run(0, 2, 3)
    assert cache.next_positions.host == 3
    again = plain(2, 3, 2, uid=50)
    run(cache, again)
    check_view(cache.layers[0].view(), Oracle([first.rows[b][:3] + again.rows[b] for b in range(2)]), 0, [0, 0])
    cache.crop([0, 2])
    assert cache.tokens == (0, 2)
    assert cache.next_positions.order.tolist() == [0, 2]
    run(cache, ragged([6, 2], [1, 1], uid=90))  # an empty row may start anywhere
    assert cache.next_positions.order.tolist() == [7, 3]
    cache.crop(0)
    assert pool.free == pool.blocks
    assert not cache.layers[0].holding


def test_crop_of_plain_rows():
    cache = paged(2, block=4)
    run(cache, plain(2, 3, 6))
    cache.crop(7)
    assert cache.layers[0].view().pos.known == Known.run(3, 2, 4)
    assert cache.next_positions.host == 7
    cache.crop([5, 7])
    assert cache.layers[0].view().pos.order.tolist() == [[3, 4, -1, -1], [3, 4, 5, 6]]
    cache.crop([4, 7])
    assert cache.next_positions.order.tolist() == [4, 7]
    cache.crop([3, 6])
    assert cache.next_positions.order.tolist() == [0, 6]  # a row that holds nothing may begin anywhere
    cache.crop([1, 2])
    assert not cache.layers[0].holding
    assert cache.next_positions.host == 0


def test_crop_and_reorder_without_reading():
    with device_like():
        cache = paged(2, block=4)
        run(cache, plain(2, 0, 6))
        cache.crop([5, 3])
        known = cache.layers[0].view().pos.known
        assert known == Known(None, (0, 5), (0, 5), (5, 3), True, False)
        cache.reorder([1, 1])
        assert cache.layers[0].view().pos.known == Known(None, (0, 5), (0, 5), (3, 3), False, False)
        cache.reorder([0])
        cache.crop(2)
        assert cache.layers[0].view().pos.known == Known(None, (0, 5), (0, 5), (2,), False, False)
        same = paged(2, block=4)
        run(same, chunk_of([[Token(i, 2 * i, None, i) for i in range(3)]] * 2))
        same.crop(2)
        assert same.layers[0].view().pos.known.same_rows
        same.crop([1, 2])
        assert not same.layers[0].view().pos.known.same_rows


def test_a_window_shows_no_more_than_can_be_seen():
    cache = paged(1, block=4, window=3)
    run(cache, plain(1, 0, 9))
    chunk = plain(1, 9, 1, uid=9)
    view = run(cache, chunk)[0]
    assert view.pos.order.tolist() == [[7, 8, 9]]
    assert shares_memory(view, cache)
    assert visible(Causal() & Window(3), chunk.pos.against(view.pos)) == Everything()
    assert cache.ledgers[0].holds().rows[0].evicted == 0
    cache.crop(2)  # nothing was let go
    assert run(cache, plain(1, 2, 1))[0].pos.order.tolist() == [[0, 1, 2]]


def test_a_window_shows_unequal_rows_by_blocks():
    cache = paged(2, block=2, window=2)
    chunks = [ragged([0, 0], [7, 2]), ragged([7, 2], [1, 1], uid=40)]
    run(cache, chunks[0])
    view = run(cache, chunks[1])[0]
    assert view.pos.order.tolist() == [[6, 7, -1], [0, 1, 2]]
    assert view.pos.known == Known(None, (0, 7), (0, 7), (2, 3), True, False)
    check_view(view, truth_of(*chunks), 0, [6, 1])


def test_a_window_hides_as_much_of_rows_that_differ():
    cache = paged(2, block=4, window=2)
    chunks = [ragged([0, 0], [7, 6]), ragged([7, 6], [1, 1], uid=40)]
    run(cache, chunks[0])
    view = run(cache, chunks[1])[0]
    assert view.pos.order.tolist() == [[4, 5, 6, 7], [4, 5, 6, -1]]
    assert view.pos.known == Known(None, (0, 7), (0, 7), (4, 3), True, False)
    check_view(view, truth_of(*chunks), 0, [6, 5])


def test_equal_rows_with_positions_of_their_own_under_a_window():
    cache = paged(2, tokens=40, block=2, window=2)
    first = chunk_of([[Token(i, 3 * i, None, i) for i in range(5)]] * 2)
    second = chunk_of([[Token(5, 15, None, 9)]] * 2)
    run(cache, first)
    view = run(cache, second)[0]
    assert view.pos.pos.tolist() == [[12, 15]] * 2
    assert view.pos.known == Known(None, (0, 5), (0, 15), (2, 2), False, True)
    assert shares_memory(view, cache)


def test_blocks_outside_window_and_draft_go_back_to_the_pool():
    cache = paged(1, block=2, window=3, draft=1)
    chunks = [plain(1, i, 1, uid=i) for i in range(11)]
    for chunk in chunks:
        run(cache, chunk)
    pool = pool_of(cache)
    assert pool.blocks - pool.free == 2
    assert cache.tokens == (11,)
    assert cache.layers[0].view().pos.order.tolist() == [[8, 9, 10]]
    assert cache.holds().layers[0].rows[0].evicted == 8
    cache.crop(10)
    with pytest.raises(CacheError, match=r"row 0 back by 1 tokens.*window of 3 and draft of 1.*draft of 1 or more"):
        cache.crop(9)
    cache.crop(11)
    view = run(cache, plain(1, 10, 1, uid=99))[0]
    assert view.pos.order.tolist() == [[8, 9, 10]]
    assert view.pos.known == Known.run(8, 1, 3)


def test_a_long_chunk_under_a_window_is_seen_whole_and_then_let_go():
    cache = paged(1, block=2, window=3, draft=0)
    first, second = plain(1, 0, 4), plain(1, 4, 9, uid=4)
    run(cache, first)
    view = run(cache, second)[0]
    assert view.pos.order.tolist() == [list(range(2, 13))]
    check_view(view, truth_of(first, second), 0, [2])
    assert cache.layers[0].view().pos.order.tolist() == [[10, 11, 12]]
    step = cache.ledgers[0].place(plain(1, 13, 1).pos)
    assert step.view_pos.order.tolist() == [[11, 12, 13]]


def test_equal_rows_that_have_let_go_of_different_blocks():
    """A row that went further and came back has let go of more. Gathered, both are cut alike, and stay plain."""
    cache = paged(2, tokens=40, block=2, window=2, draft=2)
    first = plain(2, 0, 4)
    run(cache, first)
    run(cache, ragged([4, 4], [3, 1], uid=30))
    cache.crop(5)
    assert [row.gone for row in cache.ledgers[0]._state.rows] == [2, 1]
    assert cache.layers[0].view().pos.known == Known.run(4, 2, 1)
    last = plain(2, 5, 1, uid=60)
    view = run(cache, last)[0]
    assert view.pos.order.tolist() == [[4, 5], [4, 5]]
    check_facts(view.pos)


def test_everything_let_go():
    cache = paged(1, block=1, window=1, draft=0)
    run(cache, plain(1, 0, 3))
    assert cache.layers[0].holding
    assert cache.layers[0].view().k.shape[2] == 0
    assert pool_of(cache).free == pool_of(cache).blocks
    assert run(cache, plain(1, 3, 1))[0].pos.order.tolist() == [[3]]
    two = paged(2, block=1, window=1, draft=0)
    run(two, ragged([0, 0], [2, 1]))
    view = run(two, chunk_of([[None], [None]]))[0]
    assert view.pos.order.tolist() == [[-1], [-1]]
    assert view.pos.known == Known(None, (0, 1), (0, 1), (0, 0), True, False)


def test_equal_rows_that_have_let_go_of_everything_show_one_empty_place():
    """They are no plain run, so there are tables; a view has one column, past all that these hold."""
    cache = paged(1, tokens=40, block=1, window=1, draft=0)
    parts = [cache.fresh() for _ in range(2)]
    for start, part in zip((0, 3), parts, strict=True):
        run(part, plain(1, start, 2))
    cache = ModelCache.join(parts)
    assert cache.ledgers[0].holds().rows[1].evicted == 2
    view = cache.layers[0].view()
    assert view.pos.order.tolist() == [[-1], [-1]]
    assert view.k.shape[2] == 1
    check_facts(view.pos)
    second = ragged([2, 5], [1, 1], uid=20)
    assert run(cache, second)[0].pos.order.tolist() == [[2], [5]]


def test_one_token_a_row_is_no_row_with_empty_places():
    cache = paged(2)
    view = run(cache, chunk_of([[Token(0, 5, None, b)] for b in range(2)]))[0]
    assert view.pos.known == Known(None, (0, 0), (5, 5), (1, 1), False, True)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_row_that_holds_nothing_may_begin_anywhere_when_it_is_alone(on_device):
    with device_like(on_device):
        cache = paged(2)
        run(cache, ragged([0, 0], [3, 0]))
        cache.reorder([1])
        assert not cache.layers[0].holding
        assert cache.next_positions.host == 0
        assert run(cache, plain(1, 7, 2))[0].pos.known == Known.run(7, 1, 2)


def test_nothing_but_padding_on_an_empty_cache():
    cache = paged(2)
    view = run(cache, chunk_of([[None, None]] * 2))[0]
    assert view.pos.order.tolist() == [[-1], [-1]]
    assert view.pos.known == Known(None, None, None, (0, 0), True, False)
    assert view.k.shape == (2, 2, 1, 3)
    assert not cache.layers[0].holding
    run(cache, chunk_of([[Token(0, 0, 1, 0)]] * 2, segmented=True))
    assert cache.layers[0].view().pos.segment.tolist() == [[1], [1]]


def test_segments():
    cache = paged(1)
    run(cache, chunk_of([[Token(0, 0, 4, 0)]], segmented=True))
    with pytest.raises(BadInput, match="with segments and got some without"):
        run(cache, plain(1, 1, 1))
    view = run(cache, chunk_of([[Token(1, 0, 5, 1)]], segmented=True))[0]
    assert view.pos.segment.tolist() == [[4, 5]]
    assert view.pos.known == Known(None, (0, 1), (0, 0), (2,), False, False)
    other = paged(1)
    run(other, plain(1, 0, 1))
    with pytest.raises(BadInput, match="without segments and got some with"):
        run(other, chunk_of([[Token(1, 0, 5, 1)]], segmented=True))


def test_an_old_view_keeps_its_positions():
    cache = paged(2)
    old = run(cache, ragged([0, 0], [3, 1]))[0]
    before = old.pos.order.tolist()
    run(cache, ragged([3, 1], [1, 1], uid=20))
    assert old.pos.order.tolist() == before


def test_blocks_come_back_when_a_cache_is_freed_or_forgotten():
    cache = paged(1)
    pool = pool_of(cache)
    run(cache, plain(1, 0, 9))
    other = cache.fork()
    assert pool.uses(1) == 2
    del other
    gc.collect()
    assert pool.uses(1) == 1
    open_pass = cache.fork()
    open_pass.ledgers[0].place(Positions.arange(1, 20, start=9))
    del open_pass
    gc.collect()
    assert pool.uses(1) == 1
    cache.free()
    assert pool.free == pool.blocks
    cache.free()
    assert pool.free == pool.blocks
    assert cache.next_positions.host == 0
    run(cache, plain(1, 0, 2))
    assert cache.tokens == (2,)


def test_several_caches_live_in_one_pool():
    cache = paged(1, tokens=40, block=4)
    run(cache, plain(1, 0, 8))
    other = cache.fresh(batch=2)
    assert pool_of(other) is pool_of(cache)
    assert other.layers[0].store is cache.layers[0].store
    theirs = ragged([0, 0], [3, 6], uid=70)
    run(other, theirs)
    check_view(other.layers[0].view(), truth_of(theirs), 0, [0, 0])
    check_view(cache.layers[0].view(), truth_of(plain(1, 0, 8)), 0, [0])
    assert pool_of(cache).free == 10 - 2 - 3
    with pytest.raises(CacheError, match="out of blocks"):
        run(other, ragged([3, 6], [10, 20]))


def test_only_blocks_that_nobody_else_uses_would_come_back():
    cache = paged(1, tokens=40, block=4)
    run(cache, plain(1, 0, 6))
    assert cache.freeable == 2
    other = cache.fork()
    assert (cache.freeable, other.freeable) == (0, 0)
    run(other, plain(1, 6, 1))  # its last block becomes its own
    assert (cache.freeable, other.freeable) == (1, 1)
    other.free()
    assert (cache.freeable, other.freeable) == (2, 0)


def test_steps_that_a_kernel_writes_by_itself_let_go_of_blocks_as_well():
    """Twice as many tokens as are announced may still be taken back: window - 1 + draft + 2 of them stay."""
    ledger = Paged(1, Pool(200, 2), window=3, draft=1)
    assert not ledger.extensible  # nothing says yet where rows begin
    ledger.place(Positions.arange(1, 1, start=4))
    ledger.commit()
    assert ledger.extensible
    for held in range(1, 12):
        layout = ledger.extend(1).layout
        assert (layout.held, layout.run) == ((held,), True)
        wanted = held // 2 - max(0, held + 1 - 5) // 2 + 1  # blocks of 2 with the last 5 tokens in them
        assert ledger.pool.blocks - ledger.pool.free == wanted
    ledger.place(chunk_of([[Token(16, 17, 0, 0)]]).pos)
    assert not ledger.extensible  # positions of its own: no run


def test_without_a_draft_steps_of_a_kernel_let_go_of_nothing():
    ledger = Paged(1, Pool(200, 2), window=3)
    ledger.place(Positions.arange(1, 1))
    ledger.commit()
    for _ in range(9):
        ledger.extend(1)
    assert ledger.pool.blocks - ledger.pool.free == 5


def test_where_a_pass_lies_for_kernels_that_write_themselves():
    ledger = Paged(2, Pool(200, 2), window=2, draft=0)
    assert ledger.layout() is None  # no pass is open
    ledger.place(Positions.arange(2, 5))
    first = ledger.layout()
    assert (first.held, first.run, first.block, first.gone) == ((0, 0), True, 2, (0, 0))
    assert first.blocks == tuple(row.blocks for row in ledger._state.rows)
    ledger.place(ragged([5, 5], [2, 1]).pos)
    second = ledger.layout()
    assert (second.held, second.run, second.gone) == ((5, 5), False, (2, 2))
    assert [len(blocks) for blocks in second.blocks] == [2, 1]
    ledger.commit()
    assert ledger.layout() is None
    packed = Paged(1, Pool(200, 2))
    packed.place(chunk_of([[Token(0, 0, 0, 0)]], segmented=True).pos)
    assert packed.layout() is None  # documents: only its reads and writes know


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window": 0}, "window of 0"),
        ({"draft": 1}, "draft=1 with window=None"),
        ({"window": 2, "draft": -1}, "draft=-1"),
        ({"batch": 0}, "0 rows"),
    ],
)
def test_nonsense_is_refused(options, says):
    with pytest.raises(BadInput, match=says):
        Paged(**{"batch": 1, "pool": Pool(), **options})


def test_tables_of_blocks_are_made_once_until_a_row_gets_one():
    cache = paged(2, tokens=40, block=4)
    run(cache, ragged([0, 0], [3, 1]))
    ledger = cache.ledgers[0]
    one = ledger.look().read
    assert one.table.shape == (2, 1)  # as wide as the longest row
    run(cache, ragged([3, 1], [1, 1], uid=9))
    assert ledger.look().read.table is one.table
    run(cache, ragged([4, 2], [1, 1], uid=19))
    assert ledger.look().read.table is not one.table
    assert ledger.look().read.table.tolist()[1][1] == 0  # the bin
    assert len(ledger._moves._block_tables) <= 2


def test_a_window_reads_by_another_table_of_blocks_than_it_writes_by():
    ledger = Paged(2, Pool(200, 4), window=2)
    ledger.place(ragged([0, 0], [9, 1]).pos)
    one = ledger.place(ragged([9, 1], [1, 1]).pos).read.table
    assert one.shape == (2, 1)
    assert ledger.place(ragged([10, 2], [1, 1]).pos).read.table is one  # both are kept
    for i in range(30):
        ledger.place(ragged([11 + i, 3 + i], [1, 1]).pos)
        assert len(ledger._moves._block_tables) <= 2  # and no more than both


def test_names():
    assert Paged(1, Pool(32)).name == "paged, pool of 2 blocks of 16 tokens a block"
    assert Paged(1, Pool(block=8), window=4).name == "paged, growing pool of 8 tokens a block, window 4"
    assert Paged(1, Pool()).capacity is None


def test_many_rows_gather_the_right_blocks():
    cache = model_cache(Paged(3, Pool(block=2)), layers=1)
    oracle = Oracle([[], [], []])
    generator = torch.Generator().manual_seed(0)
    for i in range(12):
        lengths = torch.randint(0, 4, (3,), generator=generator).tolist()
        lengths[i % 3] = 3
        chunk = ragged(oracle.next(), lengths, uid=100 * i)
        view = run(cache, chunk)[0]
        oracle.append(chunk)
        check_view(view, oracle, 0, [0] * 3)


def test_how_far_apart_rows_stand():
    """What lets a batch be read as one view instead of by gathering: it holds for neighbours, too."""
    assert stride([BlockRow((4,), 3), BlockRow((5,), 3)], 8) == 8
    assert stride([BlockRow((4, 5), 9), BlockRow((7, 8), 9), BlockRow((10, 11), 9)], 8) == 24
    assert stride([BlockRow((4,), 3)], 8) == 0
    assert stride([BlockRow((5,), 3), BlockRow((4,), 3)], 8) is None
    assert stride([BlockRow((4,), 3), BlockRow((4,), 3)], 8) is None
    assert stride([BlockRow((4,), 3), BlockRow((5,), 2)], 8) is None


def test_rows_that_are_picked_say_whether_some_are_shorter():
    """On a device that is not read: there shorter rows have places that a mask must hide."""
    order = torch.tensor([[-1, 0, 1, 2], [-1, 0, 1, -1], [-1, 3, 4, -1]])
    rows = BlockRow((0, 1), 3), BlockRow((2,), 2), BlockRow((3,), 2)
    state = PagedState(rows, Known(empty=True), Tables(order, order, None), torch.tensor([3, 2, 5]))
    with device_like():
        assert state.pick([0, 1], order.device).known.empty
        assert not state.pick([1, 2], order.device).known.empty
