"""What caches that forget let stay, entry by entry."""

from __future__ import annotations

import pytest
import torch

from tests.cache.forgetting_rules import SINKS, WINDOW
from vantage.cache.kinds.heavy_hitters import HeavyHitterCache
from vantage.cache.kinds.sinks import SinkCache
from vantage.cache.policies import Entries, HeavyHitters, LastWeights, ObservedByLast, SinkWindow
from vantage.errors import BadInput
from vantage.spec.masks import Causal
from vantage.spec.positions import Known, Positions


def test_the_worked_number():
    """Two sinks, a window of three: query 7 sees 0, 1, 5, 6, 7; key 0 is 7 away by position, 4 by place."""
    policy = SinkWindow(SINKS, WINDOW, by_place=True)
    order = torch.tensor([[7]])
    keys = Positions.of(torch.tensor([[0, 1, 5, 6, 7]]))
    query, held = policy.numbers(Positions.of(order), keys)
    assert (query.pos - held.pos).tolist() == [[4, 3, 2, 1, 0]]
    mask = policy.mask & Causal()
    assert mask(Positions.of(order).place, Positions.arange(1, 9).place).nonzero()[:, 1].tolist() == [0, 1, 5, 6, 7]


def test_the_lightest_goes_and_of_equals_the_oldest():
    order = torch.tensor([[3, 0, 1, 2, 4], [4, 3, 2, 1, 0]])
    scores = torch.tensor([[0.1, 2.0, 0.5, 0.5, 0.0], [0.0, 0.0, 3.0, 2.0, 1.0]])
    entries = Entries(order, None, scores, torch.tensor([[5], [5]]))
    stay = HeavyHitters(2, 2).stay(entries, 0)
    assert stay.tolist() == [[True, True, False, True, True], [True, True, True, True, False]]
    few = HeavyHitters(3, 2).stay(entries, 0)
    assert few.all()


def test_the_last_query_that_there_is_decides():
    """The weights of earlier ones are forgotten; a row without a token in this pass keeps what it had."""
    policy = LastWeights(2)
    weights = torch.tensor([[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]] * 3)
    pos = Positions.of(torch.tensor([[0, 1], [0, -1], [-1, -1]]))
    old = torch.full((3, 3), 7.0)
    wanted = [[0.2, 0.3, 0.5], [0.9, 0.1, 0.0], [7.0, 7.0, 7.0]]
    assert torch.equal(policy.weighed(old, weights, pos), torch.tensor(wanted))
    entries = Entries(torch.tensor([[0, 1, 2]] * 3), None, torch.tensor(wanted), torch.full((3, 1), 3))
    assert policy.stay(entries, 0).tolist() == [[False, True, True], [True, False, True], [False, True, True]]
    assert [policy.widest(Positions.arange(1, 9), most) for most in (0, 1, 2)] == [2, 1, 1]
    assert policy.lost(1, 0, 0, 0) is not None
    with pytest.raises(BadInput, match="a size of 0"):
        LastWeights(0)


def test_sinks_of_the_last_document_stay():
    """Rows hold what is near whatever it belongs to, and of the last document the first ones."""
    order = torch.arange(10)[None]
    segment = torch.tensor([[0] * 3 + [3] * 7])
    stay = SinkWindow(2, 3).stay(Entries(order, segment, None, torch.tensor([[10]])), 0)
    assert order[stay].tolist() == [3, 4, 8, 9]
    stay = SinkWindow(2, 3).stay(Entries(order, segment, None, torch.tensor([[10]])), 4)
    assert order[stay].tolist() == [3, 4, 5, 6, 7, 8, 9]
    stay = SinkWindow(0, 3).stay(Entries(order, None, None, torch.tensor([[10]])), 1)
    assert order[stay].tolist() == [7, 8, 9]
    assert [SinkWindow(2, 3).kept(draft) for draft in (0, 4)] == [4, 8]


def test_rows_of_one_document_and_places_that_are_empty():
    order = torch.tensor([[-1, 1, 0], [0, -1, -1]])
    entries = Entries(order, torch.where(order >= 0, 0, -1), None, torch.tensor([[2], [1]]))
    assert entries.own.tolist() == [[False, True, True], [True, False, False]]
    assert SinkWindow(0, 3).stay(entries, 0).tolist() == entries.own.tolist()  # the first token is near as well


def test_heavy_hitters_of_an_earlier_document_go():
    order, segment = torch.arange(5)[None], torch.tensor([[0, 0, 2, 2, 2]])
    entries = Entries(order, segment, torch.ones(1, 5), torch.tensor([[5]]))
    assert order[HeavyHitters(2, 1).stay(entries, 0)].tolist() == [2, 3, 4]
    assert order[HeavyHitters(1, 1).stay(entries, 0)].tolist() == [3, 4]


def test_numbers_of_a_pass_before_anything_is_gone_are_positions():
    pos = Positions.rows([5, 3], width=5)
    query, keys = SinkWindow(SINKS, WINDOW, by_place=True).numbers(pos, pos)
    for numbered in (query, keys):
        assert torch.equal(numbered.pos, pos.pos)
        assert torch.equal(numbered.order, pos.order)
        assert numbered.known.pos == (0, 4)
        assert numbered.known.first is None


def test_numbers_without_sinks_begin_at_the_oldest_in_the_window():
    keys = Positions.of(torch.tensor([[5, 6, 7], [2, 3, 4]]))
    query, held = SinkWindow(0, 3, by_place=True).numbers(Positions.of(torch.tensor([[7], [4]])), keys)
    assert query.pos.tolist() == [[2], [2]]
    assert held.pos.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert not held.known.same_rows  # their orders differ


def test_numbers_count_in_the_document():
    order = torch.tensor([[20]])
    pos = Positions.of(order - 10, order=order, segment=torch.full((1, 1), 10))
    keys = Positions.of(
        torch.tensor([[0, 1, 8, 9, 10]]), order=torch.tensor([[10, 11, 18, 19, 20]]), segment=torch.full((1, 5), 10)
    )
    query, held = SinkWindow(SINKS, WINDOW, by_place=True).numbers(pos, keys)
    assert query.pos.tolist() == [[4]]
    assert held.pos.tolist() == [[0, 1, 2, 3, 4]]


def test_how_wide_a_pass_may_be():
    by_place, sinks = SinkWindow(SINKS, WINDOW, by_place=True), SinkWindow(SINKS, WINDOW)
    assert sinks.widest(Positions.arange(2, 9), 4) == 9
    assert by_place.widest(Positions.arange(2, 5), 0) == 5
    assert by_place.widest(Positions.arange(2, 9), 0) == 5
    assert by_place.widest(Positions.arange(2, 9, 3), 3) == 2
    assert by_place.widest(Positions.arange(2, 9, 5), 4) == 1
    assert by_place.widest(Positions.rows([9, 4], pad="left"), 0) == 5
    assert by_place.widest(Positions.packed([[4, 5], [9]]), 0) == 5
    assert by_place.widest(Positions.packed([[4, 5], [5, 4]]), 0) == 9
    assert by_place.widest(Positions.rows([3, 2], [9, 9]), 0) == 1
    unread = Positions.arange(2, 9).to("meta")
    assert by_place.widest(Positions(unread.pos, unread.order, None, Known()), 0) == 1
    heavy = HeavyHitters(3, 2)
    assert [heavy.widest(Positions.arange(1, 9), most) for most in (0, 3, 5)] == [5, 2, 1]
    assert heavy.widest(Positions.arange(1, 1), 5) == 1


@pytest.mark.parametrize(
    ("to", "start", "low", "document", "kept"),
    [
        (7, 0, 0, 0, True),  # nothing has gone
        (7, 4, 4, 0, True),  # a row that began later
        (5, 0, 2, 0, True),  # only sinks lie before
        (6, 0, 4, 0, True),  # it would see from 4 on
        (5, 0, 4, 0, False),
        (6, 0, 4, 7, False),  # in the document before, whose sinks are gone
        (8, 0, 9, 7, True),  # only sinks lie before, in the last document
        (5, 4, 4, 0, True),  # a row that began later, and has just begun to let go
        (3, 0, 2, 0, True),  # only sinks lie before, and part of the window is among them
        (7, 0, 8, 7, False),  # the last document is gone: the one before may go on, and lacks its window
    ],
)
def test_how_far_a_row_goes_back(to, start, low, document, kept):
    assert (SinkWindow(2, 3).lost(to, start, low, document) is None) == kept
    assert HeavyHitters(2, 3).lost(to, start, low, document) is not None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SinkCache(-1, 3), "-1 sinks and a window of 3"),
        (lambda: SinkCache(1, 0), "1 sinks and a window of 0"),
        (lambda: HeavyHitterCache(-1, 3), "-1 heavy and 3 recent"),
        (lambda: HeavyHitterCache(1, 0), "1 heavy and 0 recent"),
    ],
)
def test_bad_numbers(make, says):
    with pytest.raises(BadInput, match=says):
        make()


def test_the_smallest_numbers():
    """Each keeps the query alone, but for the last, which keeps one token beside a window of one."""
    assert [p.kept(0) for p in (SinkWindow(0, 1), HeavyHitters(0, 1), LastWeights(1))] == [0, 1, 1]
    assert ObservedByLast(2, 1, 1).kept(0) == 2
