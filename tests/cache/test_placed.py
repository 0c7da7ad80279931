"""A step whose places are tensors does to a buffer what the same step does with the host's numbers."""

import pytest
import torch
from torch import Tensor

from vantage.cache.codecs import PlainCodec, StreamShape
from vantage.cache.ledger import Step
from vantage.cache.moves import Gathered, Places, PoolPlaces, Scatter, Span, Strided
from vantage.cache.placed import PlacedCache, PlacedStep
from vantage.spec.positions import EMPTY, Positions

ROWS, HEADS, PLACES, WIDTH, BLOCK = 3, 2, 12, 4, 2
# whose table names blocks of a pool: 2 of each row, the last of which is filled in part
TABLE = torch.tensor([[0, 1], [2, 3], [4, 5]])


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


STEPS = {
    "a place behind what is seen first": (Span(5, 1), Span(2, 4)),
    "the same place of every row": (Places(torch.tensor([5])), Span(2, 4)),
    "from the second place on": (Places(torch.tensor([3])), Span(1, 4)),
    "from the first place on": (Places(torch.tensor([3])), Span(0, 4)),
    "a place of each row": (Scatter(torch.tensor([[5], [3], [4]])), Span(2, 4)),
    "rows of a pool that stand side by side": (Strided(2, 4, ROWS, 1), Gathered(TABLE, BLOCK, 3)),
    "places of a pool": (PoolPlaces(torch.tensor([[2], [6], [10]])), Gathered(TABLE, BLOCK, 3)),
}


@pytest.mark.parametrize("kind", STEPS)
def test_what_is_written_and_seen_is_the_same(kind):
    write, read = STEPS[kind]
    pooled = isinstance(read, Gathered)
    buffer = numbers(*((HEADS, PLACES, WIDTH) if pooled else (ROWS, HEADS, PLACES, WIDTH)), seed=1)
    token, seen = numbers(ROWS, HEADS, 1, WIDTH, seed=2), read.n
    step = Step(write, read, Positions.arange(ROWS, seen), PLACES)
    placed = PlacedStep.of(step)
    assert placed is not None
    ours, theirs = buffer.clone(), buffer.clone()

    write.put(theirs, token)
    wanted = read.get(theirs, None)
    put, get = placed.moves()
    (shown,) = placed.shown(step, [ours])
    put.put(shown, token)
    got = get.get(shown, None)
    torch.testing.assert_close(got[:, :, :seen], wanted, rtol=0, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)  # and nothing else was written
    assert (wanted == token).all(-1).any()  # the token is among what is seen

    at = placed.view_pos(99, None)
    assert at.pos[:, :seen].tolist() == [list(range(seen))] * ROWS
    assert (at.order[:, seen:] == EMPTY).all()
    assert placed.block == (BLOCK if pooled else 0)


def test_a_stream_is_kept_beside_keys_and_values():
    codec, stream = PlainCodec(HEADS, WIDTH, 3), StreamShape(1, torch.float32)
    widths = [WIDTH, 3, 1]
    buffers = [numbers(ROWS, HEADS, PLACES, width, seed=i) for i, width in enumerate(widths)]
    before = [buffer.clone() for buffer in buffers]
    new = [numbers(ROWS, HEADS, 1, width, seed=10 + i) for i, width in enumerate(widths)]
    pos = Positions.arange(ROWS, 4)
    cache = PlacedCache(buffers, codec, (stream,), Places(torch.tensor([3])), Span(0, 4), pos)
    view = cache.append(Positions.arange(ROWS, 1, 3), *new)
    for shown, old, x in zip((view.k, view.v, *view.streams), before, new, strict=True):
        assert torch.equal(shown, torch.cat([old[:, :, :3], x], 2))
    assert [torch.equal(own, x) for own, x in zip(view.own, new[2:], strict=True)] == [True]


@pytest.mark.parametrize(
    "step",
    [
        (Strided(2, 4, ROWS, 2), Gathered(TABLE, BLOCK, 4)),
        (Span(4, 2), Span(2, 4)),
    ],
    ids=["two tokens of each row in a pool", "two tokens"],
)
def test_more_than_one_token_in_one_place_is_none(step):
    write, read = step
    assert PlacedStep.of(Step(write, read, Positions.arange(ROWS, read.n), PLACES)) is None
