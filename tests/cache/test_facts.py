"""What the host knows, and how little it makes anew."""

import pytest
import torch

from tests.cache.helpers import device_like
from vantage.cache.facts import (
    NextPositions,
    Ranges,
    Tables,
    check_rising,
    holds_nothing,
    joined,
    on_host,
    picked,
    unlike,
)
from vantage.errors import BadInput
from vantage.spec.positions import Known, Positions

RUN = Known.run(0, 2, 3)


def test_nothing_followed_by_something_is_something():
    nothing = Known.run(0, 2, 0)
    for same in (True, False):
        known = Known(None, (1, 2), (3, 4), (1, 1), not same, same)
        assert joined(nothing, known) == known
    assert joined(nothing, Known()) == Known()


def test_bounds_are_joined():
    later = joined(RUN, Known.run(4, 2, 2))
    assert later == Known(None, (0, 5), (0, 5), (5, 5), False, True)
    assert joined(Known.run(4, 2, 1), RUN) == Known(None, (0, 4), (0, 4), (4, 4), False, True)


def test_what_one_side_does_not_know_is_not_known():
    unknown = Known()
    for known in (joined(RUN, unknown), joined(unknown, RUN)):
        assert known == Known()
    half = Known(None, (7, 9), None, None, False, True)
    assert joined(RUN, half) == Known(None, (0, 9), None, None, False, True)
    assert joined(half, RUN) == Known(None, (0, 9), None, None, False, True)
    other = Known(None, None, (5, 8), (1, 0), True, False)
    assert joined(RUN, other) == Known(None, None, (0, 8), (4, 3), True, False)


def test_empty_places_have_no_bounds():
    nothing = Known(counts=(0, 0))
    assert holds_nothing(nothing)
    assert not holds_nothing(Known(counts=(0, 1)))
    assert not holds_nothing(Known())
    assert joined(RUN, nothing) == Known(None, (0, 2), (0, 2), (3, 3), True, False)
    assert joined(nothing, RUN) == Known(None, (0, 2), (0, 2), (3, 3), True, False)


def test_unlike_and_picked():
    assert unlike(RUN) == Known(None, (0, 2), (0, 2), (3, 3), False, False)
    assert picked(Known(None, (0, 2), (0, 2), (3, 1), True, False), [1, 1, 0]).counts == (1, 1, 3)
    assert picked(Known(), [0]) == Known()


def test_steps_are_cut_from_one_row():
    steps = Ranges(torch.device("cpu"))
    row = steps.row(5, 3)
    assert row.tolist() == [5, 6, 7]
    assert steps.row(6, 60).data_ptr() == row.data_ptr() + 8
    assert steps.row(6, 63).data_ptr() == row.data_ptr() + 8
    again = steps.row(6, 64)  # past the end
    assert again.tolist() == list(range(6, 70))
    assert steps.row(6, 128).data_ptr() == again.data_ptr()
    assert steps.row(7, 127).data_ptr() == again.data_ptr() + 8
    assert steps.row(7, 128).data_ptr() != again.data_ptr() + 8
    assert steps.row(2, 1).tolist() == [2]  # before the start
    assert steps.row(2, 64).tolist() == list(range(2, 66))
    run = steps.run(2, 3, 4, 99)
    assert run.pos.tolist() == [[2, 3, 4, 5]] * 3
    assert run.order is run.pos
    assert (run.length, run.segment) == (99, None)
    assert run.known == Known.run(2, 3, 4)


def test_steps_are_no_inference_tensors():
    steps = Ranges(torch.device("cpu"))
    with torch.inference_mode():
        steps.row(0, 1)
    assert not steps.row(0, 1).is_inference()


def test_tables():
    pos = Positions.of(torch.tensor([[1.5, -1.0]]), order=torch.tensor([[1, -1]]), segment=torch.tensor([[3, -1]]))
    tables = Tables.blank(1, 3, pos)
    assert tables.pos.dtype == torch.float32
    assert tables.segment is not None
    tables.write(1, pos)
    assert tables.order.tolist() == [[-1, 1, -1]]
    assert tables.segment.tolist() == [[-1, 3, -1]]
    assert tables.fit(3, pos) is tables
    assert tables.fit(2, pos) is tables
    assert tables.wide(3) is tables
    assert tables.wide(2) is tables
    assert tables.wide(4).pos.tolist() == [[-1, 1.5, -1, -1]]
    for places, have in ((2, 3), (3, 3), (4, 4)):
        fitted = tables.fitted(places, pos)  # never itself
        fitted.order.fill_(9)
        assert fitted.order.shape == (1, have)
    assert tables.order.tolist() == [[-1, 1, -1]]
    wide = tables.fit(5, pos)
    assert wide.pos.tolist() == [[-1, 1.5, -1, -1, -1]]
    assert wide.segment.tolist() == [[-1, 3, -1, -1, -1]]
    whole = Positions.of(torch.tensor([[2]]), order=torch.tensor([[2]]))
    assert Tables.blank(1, 2, whole).segment is None
    promoted = Tables.blank(1, 3, whole).fit(1, pos)
    assert promoted.pos.dtype == torch.float32
    assert promoted.pos.shape == (1, 3)
    kept = wide.keep(torch.tensor([[True, False, True, True, True]]))
    assert kept.pos.tolist() == [[-1] * 5]
    assert wide.pos[0, 1] == 1.5
    assert tables.facts(1, 2) == Known(None, (1, 1), (1, 2), (1,), True, False)
    cut = tables.cut(1, 2, Known(), 7)
    assert cut.order.tolist() == [[1, -1]]
    assert cut.segment.tolist() == [[3, -1]]
    assert cut.length == 7


def test_tables_are_no_inference_tensors():
    with torch.inference_mode():
        pos = Positions.of(torch.tensor([[0]]), segment=torch.tensor([[1]]))
        tables = Tables.blank(1, 2, pos)
        for made in (
            tables,
            tables.clone(),
            tables.fit(9, pos),
            tables.wide(9),
            tables.pick([0]),
            tables.keep(tables.order < 3),
        ):
            assert made.segment is not None
            assert not any(t.is_inference() for t in (made.pos, made.order, made.segment))


def test_where_rows_go_on():
    assert NextPositions.read(torch.tensor([3, 3])).host == 3
    assert NextPositions.read(torch.tensor([3, 4])).host is None
    both = NextPositions.all(5, 2, torch.device("cpu"))
    assert both.order.tolist() == [5, 5]
    assert both.host == 5
    assert on_host(torch.device("cpu"))
    assert not on_host(torch.device("meta"))


@pytest.mark.parametrize(
    ("row", "begin", "rising", "by_one"),
    [
        ([3, 4], 3, True, True),
        ([3, 5], 3, True, False),
        ([4, 5], 3, True, False),
        ([2, 3], 3, False, False),
        ([3, 3], 3, False, False),
        ([4, 3], 3, False, False),
        ([-1, 3], 3, True, True),
        ([3, -1], 3, True, True),
        ([-1, 4], 3, True, False),
        ([7, 8], 0, True, True),  # an empty row may start anywhere
        ([-1, 7], 0, True, True),
        ([7, 9], 0, True, False),
        ([0, 1], 0, True, True),
        ([0, 2], 0, True, False),
        ([0, 0], 0, False, False),
        ([0, 1], 1, False, False),
    ],
)
def test_rising(row, begin, rising, by_one):
    pos = Positions.of(torch.tensor([[begin, begin + 1], row]))
    upto = NextPositions.read(torch.tensor([begin, begin]))
    for strict, fine in ((False, rising), (True, by_one)):
        if fine:
            check_rising(pos, upto, strict)
        else:
            with pytest.raises(BadInput, match="row 1 got order"):
                check_rising(pos, upto, strict)


@pytest.mark.parametrize(
    ("order", "first", "host", "rising", "by_one"),
    [
        ((3, 5), 3, 3, True, True),
        ((3, 5), None, 3, True, True),  # nobody knows better
        ((4, 5), None, 3, True, True),
        ((4, 5), 4, 3, True, False),
        ((2, 5), 2, 3, False, False),
        ((2, 5), None, 3, False, False),
        ((2, 5), 2, None, True, True),
        ((2, 5), 2, 0, True, True),  # an empty row may start anywhere
        (None, None, 3, True, True),
    ],
)
def test_rising_by_facts_alone(order, first, host, rising, by_one):
    row = torch.zeros(1, 1, dtype=torch.int64)
    pos = Positions(row, row, None, Known(first, order))
    with device_like():
        for strict, fine in ((False, rising), (True, by_one)):
            if fine:
                check_rising(pos, NextPositions(row[0], host), strict)
            else:
                with pytest.raises(BadInput, match="a row got order"):
                    check_rising(pos, NextPositions(row[0], host), strict)
