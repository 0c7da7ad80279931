"""Positions: how they are made, and that what the host claims to know of them is true."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spec.helpers import check_facts, pairs, positions
from vantage.errors import BadInput
from vantage.spec.positions import EMPTY, Known, Pair, Positions


def test_arange_runs_from_its_start_in_every_row():
    pos = Positions.arange(2, 3, start=4)
    assert pos.pos.tolist() == pos.order.tolist() == [[4, 5, 6], [4, 5, 6]]
    assert pos.known == Known(4, (4, 6), (4, 6), (3, 3), empty=False, same_rows=True, runs=True, rising=True)
    assert pos.segment is None
    assert pos.length is None


def test_arange_starts_at_0_unless_told():
    assert Positions.arange(1, 2).pos.tolist() == [[0, 1]]


def test_rows_pads_on_the_right():
    pos = Positions.rows([3, 1], [0, 7])
    assert pos.pos.tolist() == [[0, 1, 2], [7, EMPTY, EMPTY]]
    assert pos.order.tolist() == pos.pos.tolist()
    assert pos.known == Known(None, (0, 7), (0, 7), (3, 1), empty=True, same_rows=False)
    assert pos.filled.tolist() == [[True, True, True], [True, False, False]]


def test_rows_pads_on_the_left():
    pos = Positions.rows([3, 1], [2, 7], pad="left", width=4)
    assert pos.pos.tolist() == [[EMPTY, 2, 3, 4], [EMPTY, EMPTY, EMPTY, 7]]


def test_rows_of_equal_length_and_start_are_a_run():
    assert Positions.rows([3, 3], [2, 2]).known == Known.run(2, 2, 3)
    assert Positions.rows([3, 3], [2, 3]).known.first is None
    assert Positions.rows([2, 2], width=3).known.first is None  # same rows, but with an empty place
    assert Positions.rows([2, 2], width=3).known.same_rows


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Positions.rows([1], pad="middle"), "pad='middle': use 'left' or 'right'"),
        (lambda: Positions.rows([1, 2], [0]), "1 starts for 2 rows: give one start a row"),
        (lambda: Positions.rows([1, 4], width=3), r"row lengths \[1, 4\] do not fit a width of 3"),
        (lambda: Positions.rows([-1]), "do not fit"),
        (lambda: Positions.of(torch.zeros(1, 2, 3, dtype=torch.long)), r"give \(batch, tokens\) or \(tokens,\)"),
        (lambda: Positions.of(torch.arange(3), order=torch.arange(4)), "order has shape .* they must agree"),
        (lambda: Positions.of(torch.arange(3), segment=torch.arange(2)), "segment has shape .* they must agree"),
        (lambda: Positions.of(torch.tensor([0.5, 1.5])), "fractional positions need order="),
        (lambda: Positions.packed([[2, 3]], width=4), "row 0 holds 5 tokens, wider than 4"),
    ],
)
def test_what_cannot_be_right_is_refused(call, says):
    with pytest.raises(BadInput, match=says):
        call()


def test_of_takes_one_row_or_many():
    one = Positions.of(torch.tensor([3, 5]), order=torch.tensor([0, 1]), segment=torch.tensor([0, 0]))
    assert one.pos.tolist() == [[3, 5]]
    assert one.order.tolist() == [[0, 1]]
    assert one.segment is not None
    assert one.segment.tolist() == [[0, 0]]
    assert one.known.order == (0, 1)
    assert one.known.pos == (3, 5)


def test_of_reads_a_run_as_a_run_and_documents_never():
    row = torch.arange(3, 7)
    assert Positions.of(row).known == Known.run(3, 1, 4)
    assert Positions.of(row, order=row + 1).known.first is None
    assert Positions.of(row + 1, order=row).known.first is None
    cut = Positions.of(row, segment=torch.zeros(4, dtype=torch.long)).known
    assert cut.first is None
    assert not cut.same_rows


def test_of_fractional_positions_are_bounded_by_whole_numbers():
    known = Positions.of(torch.tensor([0.5, 2.25]), order=torch.tensor([0, 1])).known
    assert known.pos == (0, 3)
    assert known.order == (0, 1)


def test_of_takes_the_callers_word_for_bounds():
    known = Positions.of(torch.tensor([3, 5]), bounds=(0, 9)).known
    assert known.pos == (0, 9)
    assert known.order == (3, 5)
    unseen = Positions.of(torch.empty(1, 2, dtype=torch.long, device="meta"), bounds=(0, 9)).known
    assert unseen.pos == unseen.order == (0, 9)


def test_nothing_is_read_from_a_device():
    pos = Positions.of(torch.empty(2, 3, dtype=torch.long, device="meta"))
    assert pos.known == Known()
    assert pos.narrow(1, 2).known.counts is None


def test_nothing_is_known_of_no_tokens_and_only_counts_of_empty_rows():
    assert Positions.of(torch.empty(2, 0, dtype=torch.long)).known == Known()
    assert Positions.of(torch.tensor([[EMPTY, EMPTY]])).known == Known(counts=(0,))


def test_from_mask_counts_the_tokens():
    mask = torch.tensor([[0, 1, 1], [1, 0, 1]])
    assert Positions.from_mask(mask).pos.tolist() == [[EMPTY, 0, 1], [0, EMPTY, 1]]
    assert Positions.from_mask(mask.bool(), torch.tensor([4, 9])).pos.tolist() == [[EMPTY, 4, 5], [9, EMPTY, 10]]


def test_onward_goes_on_from_each_rows_start():
    pos = Positions.onward(torch.tensor([4, 0]), 3)
    assert pos.pos.tolist() == pos.order.tolist() == [[4, 5, 6], [0, 1, 2]]
    assert pos.known == Known(None, (0, 6), (0, 6), (3, 3), empty=False, same_rows=False, runs=True, rising=True)
    assert Positions.onward(torch.tensor([4, 4]), 3).known == Known.run(4, 2, 3)
    dark = Positions.onward(torch.empty(2, dtype=torch.long, device="meta"), 3).known
    assert dark == Known(counts=(3, 3), empty=False, runs=True, rising=True)  # as much as is known without looking


def test_packed_documents_restart():
    pos = Positions.packed([[2, 3], [1]], width=6)
    assert pos.pos.tolist() == [[0, 1, 0, 1, 2, EMPTY], [0] + 5 * [EMPTY]]
    assert pos.segment is not None
    assert pos.segment.tolist() == [[0, 0, 2, 2, 2, EMPTY], [0] + 5 * [EMPTY]]  # where each document starts
    assert pos.order.tolist() == [[0, 1, 2, 3, 4, EMPTY], [0] + 5 * [EMPTY]]
    assert Positions.packed([[2, 3], [1]]).shape == (2, 5)
    assert Positions.packed([[2], []]).pos.tolist() == [[0, 1], [EMPTY, EMPTY]]


def test_declare_keeps_the_rest_and_forgets_what_was_worked_out():
    pos = Positions.arange(1, 3)
    pos.once("x", lambda: 1)
    longer = pos.declare(9)
    assert longer.length == 9
    assert longer.pos is pos.pos
    assert longer.known == pos.known
    assert longer.once("x", lambda: 2) == 2
    assert longer.declare(9) is longer
    assert longer.declare(None).length is None


def test_to_the_same_device_is_itself():
    pos = Positions.packed([[2, 1]])
    assert pos.to(None) is pos
    assert pos.to("cpu") is pos
    away = pos.to("meta")
    assert away.device.type == "meta"
    assert away.segment is not None
    assert away.segment.device.type == away.order.device.type == "meta"
    assert away.known == pos.known  # the host still knows


def test_expand_repeats_one_row():
    pos = Positions.packed([[2, 1]]).declare(5).expand(3)
    assert pos.pos.tolist() == 3 * [[0, 1, 0]]
    assert pos.segment is not None
    assert pos.segment.tolist() == 3 * [[0, 0, 2]]
    assert pos.known.counts == (3, 3, 3)
    assert pos.length == 5
    assert Positions.arange(1, 3, 2).expand(2).known == Known.run(2, 2, 3)


def test_narrow_cuts_columns():
    run = Positions.arange(2, 6, 3).declare(20).narrow(2, 3)
    assert run.pos.tolist() == run.order.tolist() == [[5, 6, 7], [5, 6, 7]]
    assert run.known == Known.run(5, 2, 3)
    assert run.length == 20
    cut = Positions.packed([[2, 3], [1]]).narrow(1, 3)
    assert cut.pos.tolist() == [[1, 0, 1], [EMPTY] * 3]
    assert cut.order.tolist() == [[1, 2, 3], [EMPTY] * 3]
    assert cut.segment is not None
    assert cut.segment.tolist() == [[0, 2, 2], [EMPTY] * 3]
    assert cut.known.counts == (3, 0)


@given(positions(), st.data())
@settings(deadline=None)
def test_every_claimed_fact_is_true(pos, data):
    check_facts(pos)
    start = data.draw(st.integers(0, pos.shape[1] - 1))
    width = data.draw(st.integers(1, pos.shape[1] - start))
    check_facts(pos.narrow(start, width))
    check_facts(pos.declare(40))
    one = Positions(pos.pos[:1], pos.order[:1], None if pos.segment is None else pos.segment[:1])
    check_facts(one.expand(3))
    check_facts(Positions.of(pos.pos, order=pos.order, segment=pos.segment).narrow(start, width))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=3),
    st.sampled_from(["left", "right"]),
)
@settings(deadline=None)
def test_rows_hold_what_they_say(rows, pad):
    lengths, starts = [n for n, _ in rows], [s for _, s in rows]
    pos = Positions.rows(lengths, starts, pad=pad, width=4)
    check_facts(pos)
    for b, (n, start) in enumerate(rows):
        assert pos.pos[b][pos.filled[b]].tolist() == list(range(start, start + n))
        empty = ~pos.filled[b]
        assert empty[n:].all() if pad == "right" else empty[: 4 - n].all()


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=3))
@settings(deadline=None)
def test_from_mask_is_true(mask):
    pos = Positions.from_mask(torch.tensor(mask))
    check_facts(pos)
    assert pos.filled.tolist() == mask


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=3))
@settings(deadline=None)
def test_packed_is_true(documents):
    pos = Positions.packed(documents, width=9)
    check_facts(pos)
    assert pos.known.counts == tuple(sum(row) for row in documents)


# ---- pairs


@given(pairs())
@settings(deadline=None)
def test_the_places_of_a_pair_broadcast_to_the_batch(pair):
    q, k = pair
    places = q.against(k)
    rows = places.rows
    assert rows in (1, q.shape[0])
    if rows == 1 and q.shape[0] > 1:
        assert (q.order == q.order[:1]).all()
        assert (k.order == k.order[:1]).all()
        assert q.segment is None
        assert k.segment is None
    at, to = places.places()
    assert torch.equal(at.order.expand(q.shape[0], 1, -1, 1)[:, 0, :, 0], q.order)
    assert torch.equal(at.pos.expand(q.shape[0], 1, -1, 1)[:, 0, :, 0], q.pos)
    assert torch.equal(to.order.expand(q.shape[0], 1, 1, -1)[:, 0, 0], k.order)
    assert torch.equal(to.pos.expand(q.shape[0], 1, 1, -1)[:, 0, 0], k.pos)
    if q.segment is not None and k.segment is not None:
        assert at.segment is not None
        assert to.segment is not None
        assert torch.equal(at.segment[:, 0, :, 0], q.segment)
        assert torch.equal(to.segment[:, 0, 0], k.segment)


def test_rows_that_are_the_same_are_built_once():
    q = Positions.arange(4, 3)
    assert q.against(q).rows == 1
    assert Positions.rows([2, 2], width=3).against(Positions.arange(2, 3)).rows == 1
    assert Positions.rows([2, 1], width=3).against(Positions.arange(2, 3)).rows == 2
    assert Positions.arange(2, 3).against(Positions.rows([2, 1], width=3)).rows == 2
    assert Positions.packed([[3]]).expand(2).against(Positions.packed([[3]]).expand(2)).rows == 2


def test_a_pair_is_made_once_and_works_a_thing_out_once():
    q, k = Positions.arange(1, 2), Positions.arange(1, 2)
    pair = q.against(k)
    assert q.against(k) is pair
    assert q.against(q) is not pair
    assert isinstance(pair, Pair)
    calls = []
    assert pair.once("x", lambda: calls.append(1) or 7) == 7
    assert pair.once("x", lambda: calls.append(1) or 8) == 7
    assert len(calls) == 1


# ---- documents, as far as the host knows them


def test_how_many_documents_there_are_and_how_long_the_longest():
    at = Positions.packed([[3, 2], [1, 1, 4]], width=9)
    assert at.known.documents == (5, 4)
    again = Positions.of(at.pos, order=at.order, segment=at.segment)
    assert again.known.documents == (5, 4)
    assert Positions.arange(2, 5).known.documents is None


@pytest.mark.parametrize("change", ["narrow", "expand", "repeat", "every"])
def test_of_a_part_of_the_rows_nothing_is_said(change):
    at = Positions.packed([[3, 2]])
    changed = {
        "narrow": lambda: at.narrow(1, 3),
        "expand": lambda: at.expand(2),
        "repeat": lambda: at.repeat(2),
        "every": lambda: at.every(1, 0),
    }[change]()
    assert changed.known.documents is None


def test_documents_that_are_not_one_behind_the_other():
    def known(pos, order, segment):
        tensors = [torch.tensor([x]) for x in (pos, order, segment)]
        return Positions.of(tensors[0], order=tensors[1], segment=tensors[2]).known.documents

    assert known([0, 1, 0], [0, 1, 2], [0, 0, 2]) == (2, 2)
    assert known([0, 1, 0, -1], [0, 1, 2, -1], [0, 0, 2, -1]) == (2, 2)
    assert known([-1, 0, 1], [-1, 0, 1], [-1, 0, 0]) is None  # padded on the left
    assert known([1, 2, 0], [1, 2, 3], [0, 0, 3]) is None  # goes on where a pass before it ended
    assert known([0, 1, 5], [0, 1, 2], [0, 0, 2]) is None  # positions of its own
    assert known([0, 2, 0], [0, 2, 3], [0, 0, 3]) is None  # a gap
    assert known([0, 0, 1], [0, 1, 2], [0, 1, 0]) is None  # taking turns
    assert known([-1], [-1], [-1]) is None
