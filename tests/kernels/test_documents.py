"""Where documents lie, and the blocks of queries that a kernel takes one by one."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from vantage.kernels.documents import (
    blocks_of_keys,
    document_blocks,
    document_starts,
    documents_alone,
    is_side_by_side,
    key_blocks,
)
from vantage.spec.positions import Positions

BLOCK = 4
rows_of_documents = st.lists(st.lists(st.integers(1, 11), min_size=1, max_size=4), min_size=1, max_size=3)


def test_where_documents_begin_and_how_long_they_are():
    at = Positions.packed([[3, 1], [6]], width=8)
    starts, lengths = document_starts(at, 4)
    assert starts.tolist() == [8, 0, 3, 14, 14]
    assert lengths.tolist() == [6, 3, 1, 0]


@given(rows_of_documents, st.integers(0, 5))
def test_blocks_hold_every_token_once_and_none_that_is_empty(rows, more):
    at = Positions.packed(rows, width=max(map(sum, rows)) + more)
    assert at.known.documents is not None
    count = at.known.documents[0]
    held = torch.zeros(at.shape, dtype=torch.int64)
    for row, first, end, number in document_blocks(at, count, BLOCK).tolist():
        begin = first + number * BLOCK
        held[row, begin : min(begin + BLOCK, end)] += 1
        if begin < end:  # of one document, all of it
            assert at.segment is not None
            assert (at.segment[row, first:end] == first).all()
            assert end == at.shape[1] or at.order[row, end] < 0 or at.segment[row, end] == end
    assert (held == at.filled).all()


@given(rows_of_documents)
def test_the_longest_rows_of_tiles_come_first_and_what_is_too_much_last(rows):
    at = Positions.packed(rows)
    assert at.known.documents is not None
    blocks = document_blocks(at, at.known.documents[0], BLOCK)
    there = blocks[:, 2] > 0
    assert (there[:-1] | ~there[1:]).all()
    numbers = blocks[there, 3]
    assert (numbers[:-1] >= numbers[1:]).all()
    assert int(there.sum()) == sum(-(-n // BLOCK) for row in rows for n in row)


@given(rows_of_documents, st.integers(0, 5))
def test_blocks_of_keys_hold_every_token_once_and_reach_to_their_documents_ends(rows, more):
    """Tiles of a document follow each other, in places that no other document has."""
    at = Positions.packed(rows, width=max(map(sum, rows)) + more)
    assert at.known.documents is not None
    (count, *rest), *blocks = key_blocks(at, at.known.documents[0], BLOCK, BLOCK // 2).tolist()
    assert rest == [0, 0, 0]
    ends = [row * at.shape[1] + sum(lengths[: i + 1]) for row, lengths in enumerate(rows) for i in range(len(lengths))]
    tokens, places = [], {}
    for first, left, tiles, place in blocks[:count]:
        assert first + left in ends
        assert tiles == -(-left // (BLOCK // 2)) > 0
        tokens += range(first, first + min(BLOCK, left))
        for tile in range(tiles):
            assert places.setdefault(place + tile, first + tile * BLOCK // 2) == first + tile * BLOCK // 2
    assert sorted(tokens) == at.filled.flatten().nonzero().flatten().tolist()
    assert max(places) < len(blocks) * 2
    order = [tiles for _, _, tiles, _ in blocks]
    assert order == sorted(order, reverse=True)
    assert not any(order[count:])


@given(rows_of_documents, st.integers(1, 70))
def test_blocks_of_keys_in_a_window_reach_to_the_last_query_that_sees_one(rows, window):
    at = Positions.packed(rows)
    assert at.known.documents is not None
    whole, narrow = (key_blocks(at, at.known.documents[0], BLOCK, BLOCK // 2, n).tolist() for n in (0, window))
    reach = {first: (left, place, tiles) for first, left, tiles, place in whole[1 : 1 + whole[0][0]]}
    assert narrow[0] == whole[0]
    for first, left, tiles, place in narrow[1 : 1 + narrow[0][0]]:
        last_key = min(BLOCK, left) - 1
        seen_by = [i for i in range(left) if any(0 <= i - j < window for j in range(last_key + 1))]
        assert (left, place) == reach[first][:2]
        assert seen_by[-1] // (BLOCK // 2) < tiles <= reach[first][2]
        assert tiles * BLOCK // 2 < BLOCK + window + BLOCK // 2


def test_documents_alone_are_those_that_look_at_themselves():
    at = Positions.packed([[5, 4], [9]])
    assert documents_alone(at.against(at)) == (3, 9)
    assert documents_alone(at.narrow(4, 5).against(at)) is None  # behind a cache
    plain = Positions.arange(1, 9)
    assert documents_alone(plain.against(plain)) is None


def test_what_lies_as_one_description_says():
    x = torch.empty(2, 5, 3, 64, dtype=torch.bfloat16).transpose(1, 2)  # as a projection hands it on
    qkv = torch.empty(2, 5, 9 * 64, dtype=torch.bfloat16)
    q, _, v = (part.unflatten(-1, (3, 64)).transpose(1, 2) for part in qkv.split(3 * 64, -1))
    assert all(is_side_by_side(t) for t in (x, q, v, x[:1, :, 1:]))
    assert not is_side_by_side(x.contiguous())  # heads lie apart
    assert not is_side_by_side(x[:, :, 1:])  # a row has more tokens than it shows
    assert not is_side_by_side(x[..., 1:])
    assert not is_side_by_side(x[:, :, :1].expand(-1, -1, 5, -1))


def test_sums_of_gradients_take_no_more_memory_than_their_inputs():
    """Each document has whole blocks of 128 there, in float32."""
    for lengths, kv_heads, fits in (
        ([128] * 8, 4, True),
        ([127] * 8, 4, False),
        ([512] * 2, 1, True),
        ([300] * 3, 1, False),
    ):
        at, tokens = Positions.packed([lengths]), sum(lengths)
        q, k = (torch.empty(1, heads, tokens, 64, dtype=torch.bfloat16) for heads in (4, kv_heads))
        blocks = blocks_of_keys(q, k, at.against(at), len(lengths))
        assert (blocks is not None) == fits
        if blocks is not None:
            sums = (len(blocks) - 1) * 128 * q.shape[1] * q.shape[3] * 4
            assert sums <= 2 * (q.nbytes + k.nbytes)


def test_sums_without_an_order_are_left_to_others_where_torch_is_deterministic():
    at = Positions.packed([[512, 512]])
    q = torch.empty(1, 4, 1024, 64, dtype=torch.bfloat16)
    assert blocks_of_keys(q, q, at.against(at), 2) is not None
    torch.use_deterministic_algorithms(True)
    try:
        assert blocks_of_keys(q, q, at.against(at), 2) is None
    finally:
        torch.use_deterministic_algorithms(False)
