"""The mask algebra: what a mask means, that simplifying changes nothing, and that what masks claim is true."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tests.spec.helpers import (
    CAUSAL,
    EVERYTHING,
    FILLED,
    NOTHING,
    SAME_SEGMENT,
    Meant,
    Token,
    atoms,
    both,
    brute,
    chunked,
    either,
    masks,
    pairs,
    prefix,
    window,
)
from vantage.errors import BadInput
from vantage.spec.masks import (
    And,
    Causal,
    Chunked,
    Everything,
    Filled,
    Nothing,
    Or,
    Prefix,
    SameSegment,
    Window,
    causal_window,
    dense,
    is_plain_causal,
    visible,
)
from vantage.spec.positions import EMPTY, Positions


def table(mask, q, k):
    """(B, T, S)"""
    return dense(mask, q.against(k)).expand(q.shape[0], 1, q.shape[1], k.shape[1])[:, 0]


def lines(mask, n=5):
    pos = Positions.arange(1, n)
    return ["".join("x" if seen else "." for seen in row) for row in table(mask, pos, pos)[0].tolist()]


@pytest.mark.parametrize(
    ("mask", "picture"),
    [
        (Causal(), ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]),
        (Window(2), ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]),
        (Causal() & Window(2), ["x....", "xx...", ".xx..", "..xx.", "...xx"]),
        (Window(1), ["x....", ".x...", "..x..", "...x.", "....x"]),
        (Causal() & Chunked(2), ["x....", "xx...", "..x..", "..xx.", "....x"]),
        (Causal() | Prefix(3), ["xxx..", "xxx..", "xxx..", "xxxx.", "xxxxx"]),
        (Prefix(1), ["x....", "x....", "x....", "x....", "x...."]),
        (Everything(), 5 * ["xxxxx"]),
        (Nothing(), 5 * ["....."]),
    ],
)
def test_pictures(mask, picture):
    assert lines(mask) == picture


def test_chunks_and_prefixes_start_again_with_each_document():
    pos = Positions.packed([[3, 4]])

    def picture(mask):
        return ["".join("x" if seen else "." for seen in row) for row in table(mask, pos, pos)[0].tolist()]

    assert picture(Chunked(2)) == ["xx.....", "xx.....", "..x....", "...xx..", "...xx..", ".....xx", ".....xx"]
    assert picture(Prefix(1)) == 7 * ["x..x..."]
    assert picture(Causal() & SameSegment() & Prefix(1)) == 3 * ["x......"] + 4 * ["...x..."]


def test_documents_and_empty_places():
    pos = Positions.packed([[2, 1]], width=4)
    assert table(SameSegment(), pos, pos)[0].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert table(Filled(), pos, pos)[0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    plain = Positions.arange(1, 2)
    assert table(SameSegment(), plain, plain).all()  # nobody speaks of documents
    assert table(SameSegment(), pos, Positions.arange(1, 3)).all()


def test_masks_read_the_order_and_never_the_position():
    far = Positions.of(torch.tensor([[100, 300, 200]]), order=torch.tensor([[0, 1, 2]]))
    near = Positions.arange(1, 3)
    for mask in (Causal(), Window(2), Chunked(2), Prefix(1)):
        assert torch.equal(table(mask, far, far), table(mask, near, near))


@given(masks(), pairs())
@settings(max_examples=examples(150), deadline=None)
def test_a_mask_means_what_it_says(meant, pair):
    q, k = pair
    assert torch.equal(table(And(meant.mask, Filled()), q, k), brute(meant, q, k))


@given(masks(), pairs())
@settings(max_examples=examples(300), deadline=None)
def test_simplifying_changes_nothing(meant, pair):
    q, k = pair
    simple = (meant.mask & Filled()).simplified(q, k)
    assert torch.equal(table(simple, q, k), brute(meant, q, k))
    assert visible(meant.mask, q.against(k)) == simple
    assert torch.equal(table(visible(meant.mask, q.against(k)), q, k), brute(meant, q, k))


FAR, LAST = 16, 8  # orders that are tried, and the highest number in a mask is below LAST


def tokens():
    """Two documents side by side."""
    return [Token(order, 0) for order in range(FAR)] + [Token(FAR + rank, FAR) for rank in range(FAR)]


@given(masks())
@settings(max_examples=examples(60), deadline=None)
def test_reach_is_true(meant):
    reach = meant.mask.reach()
    if reach is not None:
        seen = [q.order - k.order for q, k in itertools.product(tokens(), repeat=2) if meant.sees(q, k)]
        assert max(seen, default=-1) < reach


@pytest.mark.parametrize(
    ("meant", "reach"),
    [
        (CAUSAL, None),
        (EVERYTHING, None),
        (SAME_SEGMENT, None),
        (FILLED, None),
        (NOTHING, 0),
        (window(3), 3),
        (chunked(4), 4),
        (prefix(2), None),
        (both(CAUSAL, window(5)), 5),
        (both(window(5), chunked(3)), 3),
        (either(window(5), chunked(3)), 5),
        (either(CAUSAL, window(5)), None),
        (either(window(5), prefix(1)), None),
    ],
)
def test_reach(meant, reach):
    assert meant.mask.reach() == reach
    if reach:  # and no less would do
        seen = [q.order - k.order for q, k in itertools.product(tokens(), repeat=2) if meant.sees(q, k)]
        assert max(seen) == reach - 1


def looks_ahead(meant: Meant, start: int) -> bool:
    """Whether some query before rank ``start`` of a document sees a key at or after it."""
    pairs = ((q, k) for q, k in itertools.product(tokens(), repeat=2) if q.segment == k.segment)
    return any(meant.sees(q, k) for q, k in pairs if q.rank < start <= k.rank)


@given(masks(), st.integers(0, LAST))
@settings(max_examples=examples(100), deadline=None)
def test_settled_is_true(meant, start):
    if meant.mask.settled(start):
        assert not looks_ahead(meant, start)


@given(atoms(), st.integers(0, LAST))
@settings(deadline=None)
def test_a_single_mask_knows_exactly_where_it_is_settled(meant, start):
    assert meant.mask.settled(start) == (not looks_ahead(meant, start))


def test_settled_of_combinations():
    assert (Causal() & Window(4)).settled(3)
    assert not (Causal() | Prefix(4)).settled(3)
    assert (Causal() | Prefix(4)).settled(4)
    assert ((Causal() | Prefix(4)) & Chunked(3)).settled(3)
    assert not (Window(3) | Causal()).settled(1)


# ---- the algebra


def test_the_algebra_drops_what_says_nothing():
    a, b = Causal(), Window(3)
    assert a & b == And(a, b)
    assert a | b == Or(a, b)
    assert a & a == a | a == a
    assert a & Everything() == Everything() & a == a
    assert a & Nothing() == Nothing() & a == Nothing()
    assert a | Everything() == Everything() | a == Everything()
    assert a | Nothing() == Nothing() | a == a


def test_a_causal_mask_over_the_past_is_no_mask():
    past, now = Positions.arange(2, 4), Positions.arange(2, 1, 3)
    assert Causal().simplified(now, past) == Everything()
    assert Causal().simplified(Positions.arange(2, 2, 3), past) == Everything()
    assert Causal().simplified(Positions.arange(2, 2, 2), past) == Causal()
    padded = Positions.of(torch.tensor([[9, EMPTY]]))
    assert Causal().simplified(padded, Positions.arange(1, 4)) == Causal()
    assert (Causal() & SameSegment() & Filled()).simplified(now, past) == Everything()


def test_given_simplifies_where_the_facts_allow_it_and_only_there():
    def runs(a, b):
        return Positions.arange(1, a[1] - a[0] + 1, a[0]), Positions.arange(1, b[1] - b[0] + 1, b[0])

    assert Window(4).simplified(*runs((3, 5), (2, 6))) == Everything()
    assert Window(3).simplified(*runs((3, 5), (2, 4))) == Window(3)
    assert Window(3).simplified(*runs((2, 4), (3, 5))) == Window(3)
    assert Chunked(4).simplified(*runs((4, 5), (5, 7))) == Everything()
    assert Chunked(4).simplified(*runs((4, 5), (3, 5))) == Chunked(4)
    assert Chunked(4).simplified(*runs((4, 8), (4, 5))) == Chunked(4)
    assert Chunked(4).simplified(*runs((3, 5), (4, 5))) == Chunked(4)
    assert Prefix(4).simplified(*runs((0, 9), (0, 3))) == Everything()
    assert Prefix(4).simplified(*runs((0, 9), (0, 4))) == Prefix(4)
    assert Prefix(4).simplified(*runs((0, 9), (4, 6))) == Nothing()
    assert Prefix(4).simplified(*runs((0, 9), (3, 6))) == Prefix(4)
    packed = Positions.packed([[2, 1]])
    assert SameSegment().simplified(packed, packed) == SameSegment()
    assert SameSegment().simplified(packed, Positions.arange(1, 3)) == Everything()
    hollow = Positions.rows([2], width=3)
    assert Filled().simplified(hollow, Positions.arange(1, 3)) == Filled()
    assert Filled().simplified(Positions.arange(1, 3), hollow) == Filled()
    assert Filled().simplified(Positions.arange(1, 3), packed) == Everything()


def test_nothing_is_simplified_where_nothing_is_known():
    run = Positions.arange(1, 2, 5)
    dark = Positions(run.pos, run.order)
    for mask in (Causal(), Window(9), Chunked(9), Prefix(9), Prefix(1), Filled()):
        assert mask.simplified(dark, dark) == mask
        assert mask.simplified(dark, run) == mask
        assert mask.simplified(run, dark) == mask


def test_plain_causal_is_a_square_of_two_equal_runs():
    def plain(mask, q, k):
        return is_plain_causal(visible(mask, q.against(k)), q.against(k))

    run = Positions.arange(2, 4, 3)
    assert plain(Causal() & SameSegment(), run, Positions.arange(2, 4, 3))
    assert plain(Causal() & Window(4), run, run)  # a window that hides nothing
    assert not plain(Causal() & Window(3), run, run)
    assert not plain(Everything(), run, run)
    assert not plain(Causal(), run, Positions.arange(2, 4, 2))
    assert not plain(Causal(), run, Positions.arange(2, 5, 3))
    assert not plain(Causal(), Positions(run.pos, run.order), Positions(run.pos, run.order))
    rows = Positions.rows([4, 3])
    assert not plain(Causal(), rows, rows)


@given(masks(), st.integers(0, LAST))
@settings(max_examples=examples(100), deadline=None)
def test_what_a_query_sees_changes_at_edges_alone(meant, order):
    edges = meant.mask.edges(torch.tensor([order]))
    assert edges is not None
    marks = {int(edge) for edge in edges}
    shown = [meant.sees(Token(order, None), Token(k, None)) for k in range(FAR)]
    assert all(k in marks for k in range(1, FAR) if shown[k] != shown[k - 1])


@pytest.mark.parametrize(
    ("mask", "n"),
    [
        (Causal(), 0),
        (Causal() & SameSegment(), 0),
        (Causal() & Window(5) & SameSegment() & Window(3), 3),
        (Window(5), None),
        (SameSegment(), None),
        (Causal() & Chunked(4), None),
        (Causal() | Prefix(4), None),
        (Causal() & (Window(2) | Prefix(1)), None),
    ],
)
def test_causal_window(mask, n):
    assert causal_window(mask) == n


@pytest.mark.parametrize("make", [Window, Chunked, Prefix])
@pytest.mark.parametrize("n", [0, -3])
def test_a_mask_that_shows_nothing_is_refused(make, n):
    with pytest.raises(BadInput, match=f"of {n} shows nothing: use 1 or more"):
        make(n)
    make(1)


def test_masks_are_built_once_for_a_pair():
    q = Positions.arange(1, 3)
    pair = q.against(q)
    assert dense(Window(2), pair) is dense(Window(2), pair)
    assert dense(Window(2), pair) is not dense(Window(1), pair)
    assert dense(Window(2), pair).shape == (1, 1, 3, 3)
