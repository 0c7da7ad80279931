"""Places by order, round and round."""

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
    plain,
    ragged,
    ring,
    run,
)
from vantage.cache import Ring
from vantage.cache.moves import Concatenated, Places, Scatter, Span
from vantage.errors import BadInput, CacheError
from vantage.spec.masks import Causal, Everything, Window, is_plain_causal, visible
from vantage.spec.positions import Known, Positions


def orders(view):
    return view.pos.order.tolist()


def decoded(window, draft, n, batch=1):
    """A ring that has seen n tokens, one by one."""
    cache = ring(batch, window=window, draft=draft)
    for i in range(n):
        run(cache, plain(batch, i, 1, uid=i * batch))
    return cache


def test_it_never_takes_more_than_its_window():
    cache = ring(2, window=4, draft=1)
    before = cache.bytes
    assert [row.evicted for row in cache.holds().layers[0].rows] == [0, 0]
    assert cache.layers[0].store.tensors[0].shape == (2, 2, 6, 3)  # window + draft, and the bin
    for i in range(30):
        run(cache, plain(2, i, 1, uid=2 * i))
    assert cache.bytes == before
    assert cache.ledgers[0].capacity == 5
    assert cache.tokens == (30, 30)


def test_before_it_wraps_a_view_is_a_slice():
    cache = decoded(4, 0, 2)
    view = run(cache, plain(1, 2, 1))[0]
    assert orders(view) == [[0, 1, 2]]
    assert view.pos.known == Known.run(0, 1, 3)
    assert view.k.data_ptr() == cache.layers[0].store.tensors[0].data_ptr()


@pytest.mark.parametrize("n", range(4, 13))
def test_after_that_it_is_the_ring_and_a_decode_step_needs_no_mask(n):
    cache = decoded(4, 0, n, batch=2)
    chunk = plain(2, n, 1)
    view = run(cache, chunk)[0]
    by_place = [next(o for o in range(n - 3, n + 1) if o % 4 == place) for place in range(4)]
    assert orders(view) == [by_place] * 2
    assert view.k.data_ptr() == cache.layers[0].store.tensors[0].data_ptr()
    if n % 4 == 3:
        assert view.pos.known == Known.run(n - 3, 2, 4)
    else:
        assert view.pos.known == Known(None, (n - 3, n), (n - 3, n), (4, 4), False, True)
    assert visible(Causal() & Window(4), chunk.pos.against(view.pos)) == Everything()


def test_a_draft_is_written_in_place_and_taken_back():
    cache = decoded(3, 2, 10)
    view = run(cache, plain(1, 10, 3, uid=90))[0]  # draft + 1
    assert isinstance(cache.ledgers[0].look().read, Span)
    assert orders(view) == [[10, 11, 12, 8, 9]]
    cache.crop(11)
    held = cache.layers[0].view()
    assert orders(held) == [[10, -1, -1, 8, 9]]
    assert held.pos.known == Known(None, (8, 10), (8, 10), (3,), True, True)
    check_facts(held.pos)
    view = run(cache, plain(1, 11, 1, uid=200))[0]
    truth = Oracle([[Token(i, i, None, i) for i in range(10)] + [Token(10, 10, None, 90), Token(11, 11, None, 200)]])
    check_view(view, truth, 0, [9])


def test_what_lies_in_one_piece_is_written_in_place():
    cache = ring(1, window=6)
    assert isinstance(cache.ledgers[0].place(Positions.arange(1, 6)).read, Span)  # it fills the ring
    other = ring(1, window=6)
    step = other.ledgers[0].place(Positions.arange(1, 7))  # it does not fit
    assert step.deferred
    assert isinstance(step.read, Concatenated)
    third = ring(1, window=6)
    step = third.ledgers[0].place(Positions.arange(1, 3, start=5))  # places 5, 0, 1: not in one piece
    assert step.deferred
    fourth = ring(1, window=6)
    step = fourth.ledgers[0].place(Positions.arange(1, 4, start=8))
    assert not step.deferred
    assert step.write == Span(2, 4)
    assert step.read == Span(2, 4)
    assert step.view_pos.known == Known.run(8, 1, 4)


def test_the_first_long_prompt_is_seen_alone_with_plain_facts():
    cache = ring(1, window=3)
    chunk = plain(1, 0, 8)
    with cache.step(chunk.pos):
        k = chunk.keys(0)
        view = cache.layers[0].append(chunk.pos, k, chunk.values(0))
        assert view.k is k
        cache.layers[1].append(chunk.pos, chunk.keys(1), chunk.values(1))
    pair = chunk.pos.against(view.pos)
    assert is_plain_causal(visible(Causal(), pair), pair)
    held = cache.layers[0].view()
    assert sorted(orders(held)[0]) == [5, 6, 7]
    check_view(held, Oracle([chunk.rows[0]]), 0, [5])


def test_a_later_chunk_is_seen_after_what_the_window_shows():
    cache = ring(1, window=4, draft=1)
    first, second = plain(1, 0, 7), plain(1, 7, 4, uid=7)
    run(cache, first)
    views = run(cache, second)
    assert orders(views[0]) == [[4, 5, 6, 7, 8, 9, 10]]  # window - 1 before, in order
    assert views[0].pos.known == Known.run(4, 1, 7)
    check_view(views[1], Oracle([first.rows[0] + second.rows[0]]), 1, [4])
    held = cache.layers[0].view()
    assert sorted(orders(held)[0]) == [6, 7, 8, 9, 10]
    check_view(held, Oracle([first.rows[0] + second.rows[0]]), 0, [6])


def test_a_short_history_is_shown_whole():
    cache = ring(1, window=4)
    run(cache, plain(1, 0, 2))
    assert orders(run(cache, plain(1, 2, 6, uid=2))[0]) == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_a_deferred_write_waits_for_the_commit():
    cache = ring(1, window=3)
    run(cache, plain(1, 0, 3, uid=1))
    store = cache.layers[0].store
    kept, size = store.tensors[0].clone(), store.bytes
    chunk = plain(1, 3, 5, uid=50)
    with cache.step(chunk.pos):
        cache.layers[0].append(chunk.pos, chunk.keys(0), chunk.values(0))
        assert torch.equal(store.tensors[0], kept)
        assert store.bytes == size + chunk.keys(0).nbytes + chunk.values(0).nbytes
        assert orders(cache.layers[0].view()) == [[1, 2, 3, 4, 5, 6, 7]]  # a look during the pass sees the same
        cache.layers[1].append(chunk.pos, chunk.keys(1), chunk.values(1))
    assert not torch.equal(store.tensors[0], kept)
    assert store.bytes == size


def test_a_layer_alone_settles_when_it_is_used_again():
    cache = ring(1, window=3)
    layer = cache.layers[0]
    first, second, third = plain(1, 0, 5), plain(1, 5, 5, uid=5), plain(1, 10, 1, uid=10)
    for chunk in (first, second, third):
        view = layer.append(chunk.pos, chunk.keys(0), chunk.values(0))
    check_view(view, Oracle([first.rows[0] + second.rows[0] + third.rows[0]]), 0, [8])
    layer.append((more := plain(1, 11, 4, uid=11)).pos, more.keys(0), more.values(0))
    cache.ledgers[0].commit()
    check_view(layer.view(), Oracle([first.rows[0] + second.rows[0] + third.rows[0] + more.rows[0]]), 0, [12])


def test_how_far_it_goes_back():
    cache = decoded(4, 2, 20)
    with pytest.raises(CacheError, match=r"window 4 and draft 2 cannot take row 0 back from 20 to 17.*draft of 3"):
        cache.crop(17)
    assert cache.next_positions.host == 20
    cache.crop(18)
    assert cache.next_positions.host == 18
    with pytest.raises(CacheError, match="goes back to 18 at most"):
        cache.crop(17)
    run(cache, plain(1, 18, 1, uid=99))
    with pytest.raises(CacheError):
        cache.crop(17)
    cache.crop(19)
    cache.crop(25)
    assert cache.next_positions.host == 19


def test_it_goes_back_anywhere_while_nothing_is_gone():
    cache = decoded(4, 0, 4)
    cache.crop(1)
    assert orders(cache.layers[0].view()) == [[0]]
    cache.crop(0)
    assert not cache.layers[0].holding
    assert cache.next_positions.host == 0
    run(cache, plain(1, 3, 2))  # empty: it may start anywhere
    assert orders(cache.layers[0].view()) == [[4, -1, -1, 3]]
    full = decoded(4, 0, 5)
    with pytest.raises(CacheError, match="what lies before 1 is gone"):
        full.crop(4)


def test_rows_go_back_unequally():
    cache = decoded(3, 2, 6, batch=2)
    cache.crop([5, 6])
    view = cache.layers[0].view()
    assert [sorted(row) for row in orders(view)] == [[-1, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert cache.next_positions.order.tolist() == [5, 6]
    assert view.pos.known == Known(None, (1, 5), (1, 5), (4, 5), True, False)
    with pytest.raises(CacheError, match="row 1 back from 6 to 3"):
        cache.crop([4, 3])
    assert cache.next_positions.order.tolist() == [5, 6]
    cache.crop([4, 4])
    assert cache.next_positions.order.tolist() == [4, 4]
    with pytest.raises(CacheError, match="row 0"):
        cache.crop([3, 4])


def test_mixed_rows_forget_everything_when_cropped_to_nothing():
    cache = ring(2, window=4)
    run(cache, ragged([0, 0], [2, 1]))
    cache.crop([0, 5])
    assert cache.tokens == (0, 1)
    assert cache.next_positions.order.tolist() == [0, 1]
    view = run(cache, ragged([7, 1], [1, 1], uid=30))[0]  # an empty row may start anywhere
    assert sorted(orders(view)[0]) == [-1, -1, -1, 7]
    assert cache.tokens == (1, 2)
    cache.crop(0)
    assert not cache.layers[0].holding
    assert run(cache, plain(2, 0, 2))[0].pos.known == Known.run(0, 2, 2)


def test_a_gap_or_a_step_back_is_refused():
    cache = decoded(4, 0, 3)
    for wrong in (2, 4):
        with pytest.raises(BadInput, match=f"row 0 got order {wrong} where this cache expects 3:"):
            run(cache, plain(1, wrong, 1))
    with device_like():
        for wrong in (2, 4):
            with pytest.raises(BadInput, match=f"a row got order {wrong} where this cache expects 3:"):
                run(cache, plain(1, wrong, 1))
    assert cache.next_positions.host == 3
    with pytest.raises(BadInput, match="row 1 got order 2 where this cache expects 1"):
        run(ring(2, window=4), chunk_of([[Token(0, 0, None, 0), None], [Token(0, 0, None, 1), Token(2, 2, None, 2)]]))


@pytest.mark.parametrize(("window", "draft"), [(0, 0), (2, -1)])
def test_nonsense_is_refused(window, draft):
    with pytest.raises(BadInput, match=f"window {window} and draft {draft}"):
        Ring(1, window=window, draft=draft)


def test_right_padded_rows_stand_by_their_own_order():
    cache = ring(2, window=3)
    chunk = ragged([0, 0], [5, 2])
    view = run(cache, chunk)[0]
    assert view.pos is chunk.pos  # the chunk alone
    held = cache.layers[0].view()
    assert orders(held) == [[3, 4, 2], [0, 1, -1]]
    assert held.pos.known == Known(None, (0, 4), (0, 4), None, True, False)
    assert cache.tokens == (5, 2)
    more = ragged([5, 2], [1, 1], uid=40)
    step = cache.ledgers[0].place(more.pos)
    assert isinstance(step.write, Scatter)
    assert step.write.index.tolist() == [[2], [2]]
    assert not step.deferred
    assert step.view_pos.order.tolist() == [[3, 4, 5], [0, 1, 2]]


def test_a_later_chunk_of_unequal_rows_stands_beside_the_ring():
    cache = ring(2, window=3)
    first, second = ragged([0, 0], [4, 2]), ragged([4, 2], [1, 4], uid=20, pad="left")
    run(cache, first)
    step = cache.ledgers[0].place(second.pos)
    assert step.deferred
    assert step.view_pos.order.tolist() == [[3, 1, 2, -1, -1, -1, 4], [0, 1, -1, 2, 3, 4, 5]]
    assert step.write.index.tolist() == [[3, 3, 3, 1], [3, 0, 1, 2]]  # 3 is the bin
    assert step.view_pos.known == Known(None, (0, 5), (0, 5), None, True, False)
    assert step.read == Concatenated((Span(0, 3),))


def test_a_wrapping_draft_is_written_by_places():
    cache = decoded(3, 2, 4)
    step = cache.ledgers[0].place(Positions.arange(1, 3, start=4))
    assert isinstance(step.write, Places)
    assert step.write.index.tolist() == [4, 0, 1]
    assert not step.deferred


def test_segments_and_positions_of_their_own():
    cache = ring(1, window=2)
    chunk = chunk_of([[Token(i, i % 2, i // 2, i) for i in range(4)]], segmented=True)
    run(cache, chunk)
    view = cache.layers[0].view()
    assert view.pos.segment.tolist() == [[1, 1]]
    assert view.pos.pos.tolist() == [[0, 1]]
    assert view.pos.known == Known(None, (0, 3), (0, 1), None, True, False)
    with pytest.raises(BadInput, match="with segments and got some without"):
        run(cache, plain(1, 4, 1))
    long = chunk_of([[Token(4 + i, i, 3, 4 + i) for i in range(3)]], segmented=True)
    view = run(cache, long)[0]
    assert view.pos.segment.tolist() == [[1, 1, 3, 3, 3]]
    assert not view.pos.known.same_rows
    other = ring(1, window=2)
    run(other, plain(1, 0, 1))
    with pytest.raises(BadInput, match="without segments and got some with"):
        run(other, chunk_of([[Token(1, 0, 5, 1)]], segmented=True))


def test_fractional_positions():
    cache = ring(1, window=3)
    run(cache, plain(1, 0, 3))
    view = run(cache, chunk_of([[Token(3, 2.5, None, 9)]]))[0]
    assert view.pos.pos.tolist() == [[2.5, 1, 2]]
    assert view.pos.known.pos == (0, 3)
    assert view.pos.known.same_rows
    view = run(cache, chunk_of([[Token(4 + i, 3 + i / 2, None, 10 + i) for i in range(2)]]))[0]
    assert view.pos.pos.tolist() == [[2.5, 1, 2, 3, 3.5]]


def test_a_failed_pass_leaves_the_window_whole():
    cache = decoded(3, 2, 9)
    truth = Oracle([[Token(i, i, None, i) for i in range(9)]])
    fail(cache, plain(1, 9, 3, uid=90))
    assert cache.next_positions.host == 9
    for layer in (0, 1):
        check_view(cache.layers[layer].view(), truth, layer, [7])
    # the places that were written are let go, so it cannot be taken back
    assert sorted(o for o in orders(cache.layers[1].view())[0] if o >= 0) == [7, 8]
    with pytest.raises(CacheError):
        cache.crop(8)
    cache.crop(9)  # to where it stands: nothing is taken back
    assert cache.next_positions.host == 9
    # a failed long pass has written nothing
    cache = decoded(3, 2, 9)
    fail(cache, plain(1, 9, 4, uid=90))
    assert sorted(orders(cache.layers[0].view())[0]) == [4, 5, 6, 7, 8]
    cache.crop(7)
    check_view(cache.layers[0].view(), Oracle([truth.rows[0][:7]]), 0, [4])


def test_a_failed_pass_of_unequal_rows():
    cache = ring(2, window=2, draft=1)
    first = ragged([0, 0], [5, 1])
    run(cache, first)
    fail(cache, ragged([5, 1], [1, 1], uid=90))
    assert [sorted(o for o in row if o >= 0) for row in orders(cache.layers[0].view())] == [[3, 4], [0]]
    assert cache.tokens == (5, 1)
    assert cache.ledgers[0].holds().rows[0].evicted == 3
    # a first pass that fails leaves nothing
    empty = ring(1, window=2)
    fail(empty, plain(1, 0, 1), after=0)
    assert not empty.layers[0].holding
    run(empty, plain(1, 3, 1))


def test_a_look_at_a_ring_that_has_lost_everything():
    cache = decoded(1, 0, 2)
    fail(cache, plain(1, 2, 1, uid=9))
    assert cache.layers[0].holding
    assert cache.layers[0].view().k.shape[2] == 0
    assert cache.next_positions.host == 2
    assert orders(run(cache, plain(1, 2, 1))[0]) == [[2]]
    cache = decoded(1, 0, 2)
    fail(cache, plain(1, 2, 1, uid=9))
    view = run(cache, chunk_of([[Token(2, 7, None, 9)]]))[0]
    assert view.pos.known == Known(None, (2, 2), (7, 7), None, True, True)  # nothing before it has a say


def test_a_row_that_does_not_begin_at_0():
    cache = ring(1, window=5)
    first, second = plain(1, 1, 3), chunk_of([[Token(4, 3.5, None, 9)]])
    run(cache, first)
    view = run(cache, second)[0]
    check_view(view, Oracle([first.rows[0] + second.rows[0]]), 0, [1])  # 0 was never there
    cache = ring(1, window=4)
    run(cache, plain(1, 3, 7))
    assert cache.holds().layers[0].rows[0].evicted == 3
    cache = ring(1, window=4)
    run(cache, plain(1, 3, 2))
    cache.crop(3)
    assert not cache.layers[0].holding
    assert cache.next_positions.host == 0


def test_reorder_and_fork():
    for first in (ragged([0, 0], [4, 2]), plain(2, 0, 5)):
        cache = ring(2, window=3, draft=1)
        run(cache, first)
        truth = Oracle([[t for t in row if t] for row in first.rows])
        other = cache.fork()
        cache.reorder([1, 1, 0])
        check_view(cache.layers[1].view(), Oracle([truth.rows[1], truth.rows[1], truth.rows[0]]), 1, [9, 9, 9])
        assert cache.tokens == tuple(len(truth.rows[i]) for i in (1, 1, 0))
        assert cache.next_positions.order.tolist() == [len(truth.rows[i]) for i in (1, 1, 0)]
        ends = other.next_positions.order.tolist()
        run(other, ragged(ends, [1, 1], uid=60))
        assert cache.next_positions.order.tolist() == [len(truth.rows[i]) for i in (1, 1, 0)]
        check_view(cache.layers[0].view(), Oracle([truth.rows[1], truth.rows[1], truth.rows[0]]), 0, [9, 9, 9])


def test_facts_without_reading():
    with device_like():
        cache = ring(2, window=2, draft=1)
        run(cache, ragged([0, 0], [3, 1]))
        cache.crop([2, 1])
        known = cache.layers[0].view().pos.known
        assert known == Known(None, (0, 2), (0, 2), None, True, False)
        cache.crop(0)
        assert cache.layers[0].holding  # nobody looked
        assert cache.next_positions.order.tolist() == [0, 0]
        cache.reorder([0])
        assert cache.layers[0].view().pos.known == known
        same = ring(2, window=2)
        run(same, chunk_of([[Token(i, 2 * i, None, i) for i in range(3)]] * 2))
        same.crop(4)
        assert same.layers[0].view().pos.known.same_rows
        same.crop([3, 4])
        assert not same.layers[0].view().pos.known.same_rows


def test_name():
    assert Ring(1, window=3).name == "ring, window 3"
    assert Ring(1, window=3, draft=2).name == "ring, window 3 and draft 2"


def test_what_is_known_of_a_run_holds_when_rows_come_that_are_none():
    """On a device that is not read, a pass of empty places leaves the bounds of what was there."""
    cache = decoded(4, 0, 3, batch=2)
    with device_like():
        view = run(cache, chunk_of([[None], [None]]))[0]
    assert view.pos.known.order == (0, 2)
    check_facts(view.pos)
