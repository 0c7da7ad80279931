"""Running sums beside keys and values: a pass brings increments, and what is kept is their sum over the row so far."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vantage.cache.codecs import StreamShape
from vantage.cache.moves import BufferRead
from vantage.spec.positions import Pair, Positions


def as_kept(
    streams: Sequence[Tensor],
    shapes: Sequence[StreamShape],
    buffers: Sequence[Tensor],
    read: BufferRead,
    pos: Positions | None,
    view_pos: Positions,
) -> tuple[Tensor, ...]:
    """What a pass brings of each stream, as its buffer keeps it: running ones as sums over the row so far."""
    kept = []
    for x, shape, buffer in zip(streams, shapes, buffers, strict=True):
        x = x.to(shape.dtype)
        if shape.running:
            assert pos is not None, "a sum over a row asks which places are filled"
            x = summed(x, pos) + last_sum(buffer, read, x, pos.against(view_pos))
        kept.append(x)
    return tuple(kept)


def summed(x_BGTw: Tensor, pos: Positions) -> Tensor:
    """The sums over the tokens of this pass alone. Padding adds nothing."""
    return torch.where(pos.filled[:, None, :, None], x_BGTw, 0).cumsum(2)


def last_sum(buffer: Tensor, read: BufferRead, x_BGTw: Tensor, pair: Pair) -> Tensor:
    """(B, G, 1, w): what the newest token before this pass holds, found among what the pass will look at; 0 if none.

    A window of 1 looks at nothing before: there sums start anew, and no two of them are ever compared.
    """

    def newest() -> tuple[Tensor, Tensor]:
        order, new = pair.k.order, pair.q.order
        first = new.masked_fill(new < 0, torch.iinfo(new.dtype).max).amin(1, keepdim=True)
        if len(order) > len(first):  # heads that keep tokens of their own
            first = first.repeat_interleave(len(order) // len(first), 0)
        earlier = order.masked_fill(order >= first, -1)
        index = earlier.argmax(1)
        return index[:, None, None, None], (earlier.gather(1, index[:, None]) >= 0)[:, None, :, None]

    index, some = pair.once("newest before", newest)
    held = read.get(buffer, x_BGTw)
    rows = held.reshape(len(index), -1, *held.shape[2:])
    last = rows.gather(2, index.expand(-1, rows.shape[1], -1, rows.shape[3]))
    return torch.where(some, last, 0).reshape(len(held), held.shape[1], 1, held.shape[3])
