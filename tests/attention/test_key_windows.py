"""Windows by rank: the worked number, who sees how many, any arrangement, padding, documents, gaps, overlap."""

from __future__ import annotations

import math

import pytest
import torch

from tests.attention.helpers import F64, check_gradients, vectors
from vantage.attention.key_windows import KeyWindows, WindowPool
from vantage.model.linear import dense
from vantage.spec.masks import Causal, SameSegment, visible
from vantage.spec.masks import dense as shown
from vantage.spec.positions import Positions

CAUSAL = Causal() & SameSegment()


def pool(size, *, overlap=False, dim=1, width=1):
    part = WindowPool(dense, width, dim, size, overlap=overlap).double()
    with torch.no_grad():
        part.bias.zero_()
    return part


def kept(values, gates):
    """(1, 1, S, 2): C and Z of each token."""
    return torch.tensor([values, gates], dtype=F64).T[None, None]


def windows_of(kept, queries, size, near, *, causal=True):
    """For the last so many of the keys, or for queries elsewhere."""
    if isinstance(queries, int):
        order = kept.order.sort(1).values[:, -queries:]
        queries = Positions.of(order, segment=None if kept.segment is None else order)
    return KeyWindows.of(queries.against(kept), size, near, causal=causal)


def forgotten(pos):
    """The same positions, of which the host knows nothing."""
    return Positions(pos.pos, pos.order, pos.segment)


@torch.no_grad()
@pytest.mark.parametrize("known", [True, False])
def test_the_worked_number(known):
    """Values 1 and 3 with gates 0 and ln 3 are 2.5; queries 0 to 4 see 0, 1, 1, 2, 2 windows of two."""
    pos = Positions.arange(1, 5)
    windows = windows_of(pos if known else forgotten(pos), 5, 2, 1)
    entry = pool(2)(kept([1.0, 3.0, 0.0, 8.0, 7.0], [0.0, math.log(3), 0.0, 0.0, 0.0]), windows)
    torch.testing.assert_close(entry.flatten(), torch.tensor([2.5, 4.0], dtype=F64))
    pair = pos.against(windows.entries)
    assert shown(visible(CAUSAL, pair), pair).sum(-1).flatten().tolist() == [0, 1, 1, 2, 2]


@torch.no_grad()
def test_a_gate_for_each_place_in_the_window():
    part = pool(2)
    part.bias.copy_(torch.tensor([[0.0], [math.log(3)]]))
    windows = windows_of(Positions.arange(1, 4), 4, 2, 1)
    entry = part(kept([1.0, 3.0, 5.0, 9.0], [0.0, 0.0, 0.0, 0.0]), windows)
    assert entry.flatten().tolist() == pytest.approx([2.5, 8.0])


def test_an_entry_stands_at_its_start_and_is_ordered_by_its_end():
    pos = Positions.of(torch.tensor([[10, 12, 15, 20, 21, 29]]), order=torch.arange(6)[None])
    entries = windows_of(pos, 6, 3, 1).entries
    assert entries.pos.tolist() == [[10, 20]]
    assert entries.order.tolist() == [[2, 5]]


def listed(windows):
    """(first position, last order) of the entries that are there, of each row."""
    rows = zip(windows.entries.pos.tolist(), windows.entries.order.tolist(), strict=True)
    return [[(p, o) for p, o in zip(pos, order, strict=True) if o >= 0] for pos, order in rows]


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("known", [True, False])
def test_a_window_whose_beginning_is_missing_is_none(first, known):
    pos = Positions.arange(2, 8, start=first)
    wanted = [(n, n + 2) for n in range(0, 12, 3) if n >= first and n + 2 < first + 8]
    assert listed(windows_of(pos if known else forgotten(pos), 8, 3, 2)) == [wanted] * 2


@pytest.mark.parametrize("known", [True, False])
def test_every_token_is_a_window_of_one(known):
    pos = Positions.arange(2, 4)
    assert listed(windows_of(pos if known else forgotten(pos), 4, 1, 2)) == [[(n, n) for n in range(4)]] * 2


def test_padding_is_stepped_over_on_either_side():
    for pad in ("left", "right"):
        pos = Positions.rows([7, 3], pad=pad)
        assert listed(windows_of(pos, 7, 3, 2)) == [[(0, 2), (3, 5)], [(0, 2)]]


def test_documents_have_windows_of_their_own():
    pos = Positions.packed([[4, 5], [2, 1, 6]])
    assert listed(windows_of(pos, 9, 3, 2)) == [[(0, 2), (0, 6)], [(0, 5), (3, 8)]]
    assert windows_of(pos, 9, 3, 2).entries.segment.tolist()[1][:2] == [3, 3]


def test_a_gap_breaks_a_window():
    pos = Positions.of(torch.tensor([[0, 1, 3, 4, 5, 6, 7, 8]]))
    assert listed(windows_of(pos, 8, 3, 2)) == [[(3, 5), (6, 8)]]
    assert windows_of(pos, 8, 3, 2).follows.tolist() == [[False, True]]
    inside = windows_of(Positions.of(torch.tensor([[0, 1, 2, 4, 5, 6, 7, 8]])), 8, 3, 2)
    assert listed(inside) == [[(0, 2), (6, 8)]]
    assert inside.follows.tolist() == [[False, False]]


def test_what_is_seen_may_be_empty_where_no_token_is():
    """Two documents of 4 and 5 tokens have two windows of 3, and 9 tokens would have room for three."""
    kept = Positions.packed([[4, 5]])
    windows = windows_of(kept, 9, 3, 9)
    assert windows.entries.filled.tolist() == [[True, True, False]]
    assert not kept.known.empty
    assert windows.seen.known.empty


@torch.no_grad()
@pytest.mark.parametrize("overlap", [False, True])
def test_the_arrangement_of_a_cache_does_not_matter(overlap):
    B, S, size, near = 2, 11, 3, 2
    part = pool(size, overlap=overlap, dim=2, width=3)
    part.bias.copy_(vectors(size, part.features, seed=5))
    x, run = part.keep(vectors(B, S, 3)), Positions.arange(B, S)
    plain = windows_of(run, 4, size, near)
    shuffled = torch.stack([torch.randperm(S, generator=torch.Generator().manual_seed(b)) for b in range(B)])
    other = Positions.of(run.pos.gather(1, shuffled))
    moved = windows_of(other, 4, size, near)
    y = x.gather(2, shuffled[:, None, :, None].expand_as(x))
    torch.testing.assert_close(part(y, moved), part(x, plain), rtol=0, atol=1e-12)
    assert moved.entries.order.tolist() == plain.entries.order.tolist()
    torch.testing.assert_close(moved.nearest(y), x[:, :, -5:])
    torch.testing.assert_close(moved.last(y), plain.last(x))
    torch.testing.assert_close(plain.last(x), x[:, :, [2, 5, 8]])
    assert moved.seen.order.tolist() == plain.seen.order.tolist() == [[*range(6, 11), 2, 5, 8]] * B
    assert moved.tokens == plain.tokens == 5


@torch.no_grad()
def test_overlap_takes_other_features_of_the_window_before():
    """Of a window the second half of its features, of the one before the first; the first has none before it."""
    x = torch.tensor([[10.0, 1, 0, 0], [20, 3, 0, math.log(3)], [30, 5, 0, 0], [40, 7, 0, 0]], dtype=F64)[None, None]
    for pos in (Positions.arange(1, 4), forgotten(Positions.arange(1, 4))):
        entry = pool(2, overlap=True)(x, windows_of(pos, 4, 2, 1))
        assert entry.flatten().tolist() == pytest.approx([2.5, (10 + 20 + 5 + 7) / 4])


@torch.no_grad()
def test_no_overlap_across_documents():
    part, x = pool(2, overlap=True, dim=2, width=3), vectors(1, 9, 3)
    packed = windows_of(Positions.packed([[5, 4]]), 9, 2, 1)
    both = part(part.keep(x), packed)[0, 0][:4]
    alone = [
        part(part.keep(x[:, cut]), windows_of(Positions.arange(1, n), n, 2, 1))[0, 0]
        for cut, n in ((slice(0, 5), 5), (slice(5, 9), 4))
    ]
    torch.testing.assert_close(both, torch.cat(alone))
    assert packed.follows[0, :4].tolist() == [False, True, False, True]


@pytest.mark.parametrize("known", [True, False])
def test_a_window_before_that_is_not_whole_is_none(known):
    """Of the one before 3, 4, 5 only its first token is missing."""
    pos = Positions.arange(1, 5, start=1)
    windows = windows_of(pos if known else forgotten(pos), 5, 3, 1)
    assert listed(windows) == [[(3, 5)]]
    assert windows.follows.tolist() == [[False]]


@torch.no_grad()
def test_fewer_tokens_than_a_window():
    part = pool(3, overlap=True, dim=2, width=3)
    for pos in (Positions.arange(2, 2), forgotten(Positions.arange(2, 2))):
        windows = windows_of(pos, 2, 3, 2)
        assert windows.entries.shape == (2, 0)
        assert part(part.keep(vectors(2, 2, 3)), windows).shape == (2, 1, 0, 2)


def test_worked_out_once_for_all_layers():
    pair = Positions.arange(1, 6).against(Positions.arange(1, 6))
    first = KeyWindows.of(pair, 2, 3, causal=True)
    assert KeyWindows.of(pair, 2, 3, causal=True) is first
    others = [KeyWindows.of(pair, 3, 3, causal=True), KeyWindows.of(pair, 2, 2, causal=True)]
    assert first not in [*others, KeyWindows.of(pair, 2, 3, causal=False)]


@pytest.mark.parametrize("known", [True, False])
def test_queries_that_are_not_the_last_tokens(known):
    """As where a row's tokens lie over several processes, which show all keys to each other."""
    kept = Positions.arange(1, 20)
    kept = kept if known else forgotten(kept)

    def nearest(queries, causal=True):
        windows = windows_of(kept, queries, 3, 4, causal=causal)
        return sorted(o for o in windows.seen.order[0, : windows.tokens].tolist() if o >= 0)

    assert nearest(Positions.arange(1, 3, start=8)) == list(range(5, 11))
    assert nearest(Positions.arange(1, 1, start=1)) == [0, 1]
    assert nearest(Positions.of(torch.tensor([[4, 5, 9, 10]]))) == list(range(1, 11))
    assert nearest(Positions.arange(1, 2, start=8), causal=False) == list(range(5, 13))
    far = Positions.of(torch.tensor([[4, 15]]))
    assert nearest(Positions(far.pos, far.order)) == list(range(20))  # nothing is known of these
    one = Positions.of(torch.tensor([[9]]))
    assert nearest(Positions(one.pos, one.order)) == (list(range(20)) if known else [6, 7, 8, 9])


def test_what_the_host_knows_goes_on():
    pos = Positions.arange(2, 7, start=3).declare(64)
    for one in (windows_of(pos, 1, 2, 3), windows_of(Positions.rows([7, 7]).declare(64), 1, 2, 3)):
        for made in (one.entries, one.seen):
            assert made.length == 64
            assert made.known.same_rows
            assert made.known.first is None
            low, high = made.known.order
            assert bool(((made.order >= low) & (made.order <= high)).all())
    assert not windows_of(pos, 1, 2, 3).seen.known.empty
    assert windows_of(Positions.rows([7, 4]), 1, 2, 3).seen.known.empty


@pytest.mark.parametrize("overlap", [False, True])
def test_gradients(overlap):
    part = pool(2, overlap=overlap, dim=2, width=3)
    pos = Positions.rows([5, 4])

    def call(module, x):
        return module(module.keep(x), windows_of(forgotten(pos), 5, 2, 1))[:, :, :2]

    check_gradients(part, call, vectors(2, 5, 3))


@pytest.mark.parametrize("known", [True, False])
def test_the_nearest_of_keys_that_do_not_begin_at_0(known):
    """As in a ring: places are counted from the first key that is there."""
    kept = Positions.arange(1, 20, start=7)
    queries = Positions.arange(1, 2, start=15)
    windows = windows_of(kept if known else forgotten(kept), queries, 3, 4)
    assert windows.seen.order[0, : windows.tokens].tolist() == [12, 13, 14, 15, 16]
    columns = torch.arange(20)[None, None, :, None]
    assert windows.nearest(columns).flatten().tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_scores_of_windows_and_what_their_tokens_get(known, start):
    """Means over whole windows that are seen whole; tokens in none get what stands in the last column."""
    kept = Positions.arange(1, 7, start=start)
    windows = windows_of(kept if known else forgotten(kept), 1, 3, 1)
    first = -start % 3
    whole = [list(range(a, a + 3)) for a in range(first, 5, 3)]
    scores = torch.tensor([[[[3.0, 1, 5, 9, 4, 2, 8]]]], dtype=F64)
    means = windows.mean_scores(scores).flatten().tolist()
    wanted = [scores[0, 0, 0, columns].mean().item() for columns in whole]
    assert means == pytest.approx([*wanted, *[float("-inf")] * (len(means) - len(wanted))])
    assert len(means) == windows.entries.shape[1] + 1
    hidden = scores.clone()
    hidden[..., whole[0][1]] = float("-inf")
    assert windows.mean_scores(hidden).flatten()[0] == float("-inf")
    marks = torch.arange(len(means))[None, None, None]
    place = {column: n for n, columns in enumerate(whole) for column in columns}
    assert windows.at_tokens(marks).flatten().tolist() == [place.get(column, len(means) - 1) for column in range(7)]


def test_bounds_hold_for_tokens_and_entries_together():
    kept = Positions.of(torch.arange(10, 19)[None], order=torch.arange(9)[None])
    windows = windows_of(kept, Positions.arange(1, 1, start=8), 3, 2)
    assert windows.seen.order.tolist() == [[7, 8, 2, 5, 8]]
    assert windows.seen.known.order == (0, 8)
    assert windows.seen.known.pos == (10, 18)
    run = windows_of(Positions.arange(1, 9), 1, 3, 2)
    assert run.seen.known.order == (0, 8)
