"""Places by arrival."""

import pytest
import torch

from tests.cache.helpers import (
    Oracle,
    Token,
    check_facts,
    check_view,
    chunk_of,
    contiguous,
    device_like,
    model_cache,
    plain,
    ragged,
    run,
)
from vantage.cache import Contiguous
from vantage.errors import BadInput, CacheError
from vantage.spec.masks import Causal, Everything, Window, visible
from vantage.spec.positions import Known, Positions


def test_a_view_is_a_slice_without_a_copy():
    cache = contiguous(2, capacity=16)
    buffer = cache.layers[0].store.tensors[0]
    run(cache, plain(2, 0, 3))
    view = run(cache, plain(2, 3, 2))[0]
    assert cache.layers[0].store.tensors[0] is buffer  # made once
    assert buffer.shape == (2, 2, 16, 3)
    assert view.k.data_ptr() == buffer.data_ptr()
    assert view.k.shape == (2, 2, 5, 3)
    assert view.v.data_ptr() == cache.layers[0].store.tensors[1].data_ptr()


def test_plain_rows_stay_plain_facts_and_cost_no_tables():
    cache = contiguous(2)
    for start, width in ((0, 4), (4, 1), (5, 3)):
        view = run(cache, plain(2, start, width))[0]
        assert view.pos.known == Known.run(0, 2, start + width)
    assert cache.ledgers[0]._state.tables is None
    assert cache.next_positions.host == 8
    assert cache.layers[0].view().pos.known == Known.run(0, 2, 8)


def test_rows_may_start_anywhere():
    cache = contiguous()
    view = run(cache, plain(1, 7, 2))[0]
    assert view.pos.known.first == 7
    view = run(cache, plain(1, 9, 1))[0]
    assert view.pos.known == Known.run(7, 1, 3)
    assert cache.next_positions.host == 10
    cache.crop(8)
    assert cache.layers[0].view().pos.order.tolist() == [[7]]
    cache.crop(7)
    assert cache.next_positions.host == 0
    assert not cache.layers[0].holding


def test_every_layer_sees_the_same_positions_object():
    cache = contiguous(1)
    chunk = plain(1, 0, 2)
    views = run(cache, chunk)
    assert views[0].pos is views[1].pos
    pair = chunk.pos.against(views[0].pos)
    assert pair is chunk.pos.against(views[1].pos)
    assert cache.layers[0].view().pos is cache.layers[1].view().pos


def test_a_decode_step_needs_no_mask():
    cache = contiguous(2)
    run(cache, plain(2, 0, 5))
    chunk = plain(2, 5, 1)
    assert visible(Causal(), chunk.pos.against(run(cache, chunk)[0].pos)) == Everything()


def test_a_window_leaves_out_what_nobody_sees():
    cache = contiguous(1, window=3)
    run(cache, plain(1, 0, 5))
    chunk = plain(1, 5, 1)
    view = run(cache, chunk)[0]
    assert view.pos.order.tolist() == [[3, 4, 5]]
    assert view.pos.known == Known.run(3, 1, 3)
    assert visible(Causal() & Window(3), chunk.pos.against(view.pos)) == Everything()
    assert run(cache, plain(1, 6, 2))[0].pos.order.tolist() == [[4, 5, 6, 7]]
    # nothing is let go: it can be taken back to the start
    assert cache.layers[0].view().pos.order.tolist() == [list(range(8))]
    cache.crop(2)
    assert run(cache, plain(1, 2, 1))[0].pos.order.tolist() == [[0, 1, 2]]
    # a window of 1 sees only the new
    one = contiguous(1, window=1)
    run(one, plain(1, 0, 2))
    assert run(one, plain(1, 2, 1))[0].pos.order.tolist() == [[2]]


def test_it_grows_by_doubling():
    cache = contiguous(1)
    store = cache.layers[0].store
    assert store.bytes == 0
    assert cache.ledgers[0].capacity is None
    sizes = []
    for start in range(0, 300, 10):
        run(cache, plain(1, start, 10, uid=start))
        sizes.append(store.tensors[0].shape[2])
    assert sorted(set(sizes)) == [10 + 64, 148, 296, 592]
    oracle = Oracle([[Token(i, i, None, i) for i in range(300)]])
    check_view(cache.layers[0].view(), oracle, 0, [0])
    big = contiguous(1)
    run(big, plain(1, 0, 100))
    assert big.layers[0].store.tensors[0].shape[2] == 100 + 64


def test_a_full_cache_says_so_and_stays_as_it_was():
    cache = contiguous(1, capacity=4)
    run(cache, plain(1, 0, 3, uid=5))
    before, report = cache.layers[1].view(), cache.holds()
    with pytest.raises(CacheError, match=r"4 places, holds 3 and 2 more are needed.*capacity=5"):
        run(cache, plain(1, 3, 2))
    after = cache.layers[1].view()
    assert torch.equal(before.k, after.k)
    assert cache.holds() == report
    assert cache.next_positions.host == 3
    run(cache, plain(1, 3, 1, uid=8))
    assert cache.layers[0].view().k.shape[2] == 4
    assert cache.ledgers[0].capacity == 4
    assert cache.layers[0].store.tensors[0].shape[2] == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [({"capacity": 0}, "capacity of 0"), ({"window": 0}, "window of 0"), ({"batch": 0}, "0 rows")],
)
def test_nonsense_is_refused(options, says):
    with pytest.raises(BadInput, match=says):
        Contiguous(**{"batch": 1, **options})
    Contiguous(**{"batch": 1, **dict.fromkeys(options, 1)})  # 1 is enough of any


def test_where_a_pass_lies_for_kernels_that_write_themselves():
    ledger = Contiguous(2)
    assert ledger.layout() is None  # no pass is open
    ledger.place(Positions.arange(2, 3))
    ledger.place(Positions.arange(2, 1, start=3))
    layout = ledger.layout()
    assert (layout.held, layout.run, layout.blocks) == ((3, 3), True, None)
    ledger.place(ragged([4, 4], [2, 1]).pos)
    assert ledger.layout() is None  # unequal rows: only its reads and writes know


def test_positions_must_fit():
    cache = contiguous(2)
    with pytest.raises(BadInput, match="3 rows for a cache of 2"):
        cache.ledgers[0].place(Positions.arange(3, 1))
    with pytest.raises(BadInput, match="no tokens"):
        cache.ledgers[0].place(Positions.arange(2, 0))
    with pytest.raises(BadInput, match=r"meta, cache on cpu: use pos.to\('cpu'\)"):
        cache.ledgers[0].place(Positions.arange(2, 1, device="meta"))


def test_a_gap_is_kept_and_a_step_back_refused():
    cache = contiguous(1)
    run(cache, plain(1, 0, 2))
    view = run(cache, plain(1, 5, 1))[0]
    assert view.pos.order.tolist() == [[0, 1, 5]]
    assert view.pos.known == Known(None, (0, 5), (0, 5), (3,), False, True)
    assert cache.next_positions.host == 6
    with pytest.raises(BadInput, match=r"row 0 got order 5 where this cache expects 6 or more.*next_positions"):
        run(cache, plain(1, 5, 1))
    with pytest.raises(BadInput, match="row 0 got order 6 where this cache expects 9"):
        run(cache, chunk_of([[Token(8, 8, None, 0), Token(6, 6, None, 1)]]))
    cache.crop(4)
    assert cache.next_positions.host == 2
    assert run(cache, plain(1, 2, 1))[0].pos.known == Known.run(0, 1, 3)


def test_a_step_back_is_refused_by_facts_alone_on_a_device():
    with device_like():
        cache = contiguous(2)
        run(cache, plain(2, 0, 4))
        with pytest.raises(BadInput, match="a row got order 3 where this cache expects 4 or more"):
            run(cache, plain(2, 3, 1))
        run(cache, plain(2, 6, 1))
        assert cache.next_positions.host is None
        assert cache.next_positions.order.tolist() == [7, 7]


def test_facts_are_merged_without_reading():
    with device_like():
        cache = contiguous(2)
        run(cache, ragged([0, 0], [3, 2]))
        view = run(cache, ragged([3, 2], [1, 2]))[0]
        assert view.pos.known == Known(None, (0, 3), (0, 3), (4, 4), True, False)
        check_facts(view.pos)
        # an all-empty chunk adds no bounds; an unknown one takes them away
        view = run(cache, chunk_of([[None], [None]]))[0]
        assert view.pos.known == Known(None, (0, 3), (0, 3), (4, 4), True, False)
        view = run(cache, chunk_of([[Token(4, 4, None, 9)], [None]], known="nothing"))[0]
        assert view.pos.known == Known()
        fresh = contiguous(2)
        run(fresh, chunk_of([[None], [None]]))
        assert run(fresh, ragged([0, 0], [2, 1]))[0].pos.known.order == (0, 1)


def test_equal_rows_that_are_no_run_stay_equal():
    cache = contiguous(2)
    rows = [[Token(i, 3 * i, None, i) for i in range(3)]] * 2
    assert run(cache, chunk_of(rows))[0].pos.known == Known(None, (0, 2), (0, 6), (3, 3), False, True)
    rows = [[Token(3, 9, None, 4)]] * 2
    view = run(cache, chunk_of(rows))[0]
    assert view.pos.known == Known(None, (0, 3), (0, 9), (4, 4), False, True)


def test_crop_of_unequal_rows():
    cache = contiguous(2)
    run(cache, plain(2, 0, 4))
    cache.crop([4, 2])
    view = cache.layers[0].view()
    assert view.pos.order.tolist() == [[0, 1, 2, 3], [0, 1, -1, -1]]
    assert view.pos.pos.tolist() == view.pos.order.tolist()
    assert view.pos.known == Known(None, (0, 3), (0, 3), (4, 2), True, False)
    assert cache.next_positions.order.tolist() == [4, 2]
    assert cache.next_positions.host is None
    cache.crop([3, 9])
    assert cache.layers[0].view().pos.order.tolist() == [[0, 1, 2], [0, 1, -1]]  # the last column is given back
    cache.crop(2)
    assert cache.layers[0].view().pos.known == Known.run(0, 2, 2)  # a plain run again
    assert cache.next_positions.host == 2
    cache.crop([0, 0])
    assert not cache.layers[0].holding
    cache.crop(0)


def test_crop_of_unequal_rows_without_reading():
    with device_like():
        cache = contiguous(3)
        run(cache, plain(3, 2, 4))
        cache.crop([5, 3, 0])
        view = cache.layers[0].view()
        assert view.pos.order.tolist() == [[2, 3, 4], [2, -1, -1], [-1, -1, -1]]
        assert view.pos.known == Known(None, (2, 4), (2, 4), (3, 1, 0), True, False)
        assert cache.next_positions.order.tolist() == [5, 3, 0]
        cache.crop([4, 9, 9])
        view = cache.layers[0].view()
        assert view.pos.order.tolist() == [[2, 3, -1], [2, -1, -1], [-1, -1, -1]]  # columns cannot be given back
        assert view.pos.known == Known(None, (2, 4), (2, 4), None, True, False)
        cache.crop(4)
        assert cache.tokens == (2, 1, 0)
        cache.crop(1)
        check_facts(cache.layers[0].view().pos)
        assert cache.next_positions.order.tolist() == [0, 0, 0]


def test_crop_of_equal_rows_without_reading_keeps_them_equal():
    with device_like():
        cache = contiguous(2)
        run(cache, chunk_of([[Token(i, 2 * i, None, i) for i in range(3)]] * 2))
        cache.crop(2)
        assert cache.layers[0].view().pos.known.same_rows
        cache.crop([1, 2])
        assert not cache.layers[0].view().pos.known.same_rows


@pytest.mark.parametrize(("to", "says"), [([1], "1 values for 2 rows"), (-1, "crop to -1"), ([0, -2], "crop to -2")])
def test_a_crop_that_makes_no_sense_is_refused(to, says):
    cache = contiguous(2)
    run(cache, plain(2, 0, 3))
    with pytest.raises(BadInput, match=says):
        cache.crop(to)
    assert cache.next_positions.host == 3


def test_segments_from_the_first_token_or_never():
    cache = contiguous(1)
    run(cache, chunk_of([[Token(0, 0, 4, 0)]], segmented=True))
    with pytest.raises(BadInput, match="holds tokens with segments and got some without"):
        run(cache, plain(1, 1, 1))
    view = run(cache, chunk_of([[Token(1, 0, 5, 1)]], segmented=True))[0]
    assert view.pos.segment.tolist() == [[4, 5]]
    assert view.pos.known == Known(None, (0, 1), (0, 0), (2,), False, False)
    cache.crop(1)
    assert cache.layers[0].view().pos.segment.tolist() == [[4]]
    assert not cache.layers[0].view().pos.known.same_rows
    assert cache.layers[0].view().pos.known.first is None
    other = contiguous(1)
    run(other, plain(1, 0, 1))
    with pytest.raises(BadInput, match="holds tokens without segments and got some with: "):
        run(other, chunk_of([[Token(1, 0, 5, 1)]], segmented=True))
    other.crop(0)
    run(other, chunk_of([[Token(0, 0, 5, 1)]], segmented=True))


def test_positions_may_be_fractions():
    cache = contiguous(1)
    run(cache, plain(1, 0, 2))
    half = Positions.of(torch.tensor([[2.5]]), order=torch.tensor([[2]]))
    chunk = chunk_of([[Token(2, 2.5, None, 7)]])
    assert chunk.pos.known == half.known
    view = run(cache, chunk)[0]
    assert view.pos.pos.tolist() == [[0, 1, 2.5]]
    assert view.pos.order.tolist() == [[0, 1, 2]]
    assert view.pos.order.dtype == torch.int64
    view = run(cache, plain(1, 3, 1))[0]
    assert view.pos.pos.tolist() == [[0, 1, 2.5, 3]]


def test_small_integers_are_widened():
    cache = contiguous(1)
    first = Positions.of(torch.tensor([[0, -1]], dtype=torch.int32))
    cache.ledgers[0].place(first)
    step = cache.ledgers[0].place(Positions.of(torch.tensor([[1]])))
    assert step.view_pos.pos.dtype == torch.int64
    assert step.view_pos.pos.tolist() == [[0, -1, 1]]


def test_a_view_keeps_the_declared_length():
    cache = contiguous(1)
    first = plain(1, 0, 2)
    first.pos = first.pos.declare(99)
    assert run(cache, first)[0].pos.length == 99
    second = ragged([2], [1])
    second.pos = chunk_of([[Token(2, 5, None, 3)]]).pos.declare(77)
    assert run(cache, second)[0].pos.length == 77


def test_reorder_picks_repeats_and_drops_rows():
    cache = contiguous(2)
    chunk = ragged([0, 0], [3, 1])
    run(cache, chunk)
    cache.reorder([1, 0, 1])
    assert cache.batch == 3
    view = cache.layers[1].view()
    check_view(view, Oracle([[chunk.rows[1][0]], chunk.rows[0], [chunk.rows[1][0]]]), 1, [0, 0, 0])
    assert view.pos.known.counts == (1, 3, 1)
    cache.reorder(torch.tensor([0, 2]))
    view = cache.layers[0].view()
    assert view.pos.known == Known.run(0, 2, 1)  # the columns of the long row are given back
    for bad in ([2], [-1], []):
        with pytest.raises(BadInput, match="rows from 0 to 1"):
            cache.reorder(bad)
    empty = contiguous(1)
    empty.reorder([0, 0])
    assert empty.batch == 2


def test_reorder_without_reading_keeps_what_is_known():
    with device_like():
        cache = contiguous(2)
        run(cache, ragged([0, 0], [3, 1]))
        cache.reorder([1, 1])
        assert cache.layers[0].view().pos.known == Known(None, (0, 2), (0, 2), (1, 1), True, False)
        run(cache, chunk_of([[Token(1, 1, None, 9)]] * 2, known="nothing"))
        cache.reorder([0])
        assert cache.layers[0].view().pos.known == Known()
        assert cache.tokens == (2,)


def test_a_fork_is_independent():
    for first in (plain(1, 0, 3), ragged([0], [3], pad="left"), chunk_of([[Token(0, 7, None, 0), None]])):
        cache = contiguous(1)
        run(cache, first)
        held = cache.layers[0].view()
        k = held.k.clone()
        other = cache.fork()
        end = cache.next_positions.host
        assert end is not None
        run(other, plain(1, end, 2, uid=50))
        run(cache, plain(1, end, 1, uid=70))
        assert other.next_positions.host == end + 2
        assert cache.next_positions.host == end + 1
        assert torch.equal(cache.layers[0].view().k[:, :, :-1], k)
        assert torch.equal(other.layers[0].view().k[:, :, :-2], k)
        assert not torch.equal(cache.layers[0].view().k[:, :, -1], other.layers[0].view().k[:, :, -2])
        assert cache.layers[0].view().pos.order.tolist()[0][:-1] == held.pos.order.tolist()[0]


def test_a_fork_of_a_fixed_cache_has_the_same_capacity():
    cache = contiguous(1, capacity=5, window=2)
    run(cache, plain(1, 0, 3))
    other = cache.fork()
    assert other.ledgers[0].capacity == 5
    assert other.bytes == cache.bytes
    assert run(other, plain(1, 3, 1))[0].pos.order.tolist() == [[2, 3]]


def test_marks_serve_one_pass():
    ledger = Contiguous(1)
    savepoint = ledger.savepoint()
    ledger.place(Positions.arange(1, 3))
    ledger.roll_back(savepoint)
    assert ledger.next_positions.host == 0
    ledger.place(Positions.arange(1, 2))
    ledger.roll_back(savepoint)
    ledger.roll_back(savepoint)
    ledger.place(Positions.arange(1, 2))
    ledger.commit()
    with pytest.raises(CacheError, match="no longer good"):
        ledger.roll_back(savepoint)
    with pytest.raises(CacheError, match="no longer good"):
        ledger.roll_back(Contiguous(1).savepoint())
    savepoint = ledger.savepoint()
    ledger.crop(1)
    with pytest.raises(CacheError, match="no longer good"):
        ledger.roll_back(savepoint)
    assert ledger.next_positions.host == 1


def test_one_object_is_one_pass():
    ledger = Contiguous(1)
    pos = Positions.arange(1, 2)
    step = ledger.place(pos)
    assert ledger.place(pos) is step
    assert ledger.look() is step
    ledger.commit()
    with pytest.raises(BadInput, match="got order 0"):
        ledger.place(pos)
    cache = model_cache(ledger, layers=1).layers[0]
    chunk = plain(1, 2, 1)
    cache.append(chunk.pos, chunk.keys(0), chunk.values(0))
    with pytest.raises(CacheError, match="make new Positions"):
        cache.append(chunk.pos, chunk.keys(0), chunk.values(0))


def test_a_new_pass_commits_the_last():
    cache = model_cache(Contiguous(1), layers=1)
    layer = cache.layers[0]
    for start in range(3):
        chunk = plain(1, start, 1)
        view = layer.append(chunk.pos, chunk.keys(0), chunk.values(0))
    assert view.pos.order.tolist() == [[0, 1, 2]]


def test_what_is_refused_between_passes_of_a_layer_changes_nothing():
    layer = model_cache(Contiguous(1, capacity=2), layers=1).layers[0]
    chunk = plain(1, 0, 2)
    layer.append(chunk.pos, chunk.keys(0), chunk.values(0))
    more = plain(1, 2, 1)
    with pytest.raises(CacheError, match="full"):
        layer.append(more.pos, more.keys(0), more.values(0))
    assert layer.view().pos.order.tolist() == [[0, 1]]


def test_looking_at_nothing_is_refused():
    with pytest.raises(CacheError, match="holds nothing yet"):
        contiguous(1).layers[0].view()


def test_a_look_is_made_once_until_something_changes():
    cache = contiguous(2)
    run(cache, plain(2, 0, 3))
    ledger = cache.ledgers[0]
    seen = ledger.look()
    assert ledger.look() is seen
    assert seen.write is None
    for change in (
        lambda: ledger.crop(2),
        lambda: ledger.reorder([0]),
        lambda: ledger.place(Positions.arange(1, 1, 2)),
    ):
        change()
        assert ledger.look() is not seen
        seen = ledger.look()
    ledger.free()
    assert not ledger.holding


def test_uneven_rows_cropped_to_nothing_give_every_column_back():
    ledger = Contiguous(2)
    ledger.place(Positions.rows([2, 3]))
    ledger.commit()
    ledger.crop(0)
    assert ledger.used == 0
    assert not ledger.holding
    assert ledger.tokens == (0, 0)
