"""Where the documents of packed rows lie, worked out on the device: nothing is read back."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.spec.positions import Pair, Positions


def documents_alone(pair: Pair) -> tuple[int, int] | None:
    """How many documents there are and how long the longest is, where queries and keys are the same tokens, one
    document behind the other, and the host knows it; ``None``: they are not, or it does not."""
    same = pair.q.order is pair.k.order and pair.q.segment is pair.k.segment
    return pair.q.known.documents if same and pair.q.segment is not None else None


def document_starts(at: Positions, most: int) -> tuple[Tensor, Tensor]:
    """(most + 1) and (most): the first token of each document, counted over all rows, and its length; without a word
    from the device. The longest come first: short ones then fill what is left of a GPU at the end."""
    assert at.segment is not None
    filled = at.filled.flatten()
    first = filled & (at.order == at.segment).flatten()
    place = torch.arange(len(filled), device=filled.device)
    which = first.cumsum(0) - 1
    none = torch.full_like(which, most)
    lengths = torch.zeros(most + 1, dtype=torch.int32, device=filled.device)
    lengths.scatter_add_(0, torch.where(filled, which, none), filled.int())
    end = torch.where(filled, place + 1, 0).amax()
    starts = end.repeat(most + 1).scatter_(0, torch.where(first, which, none), torch.where(first, place, end))
    lengths, by_length = lengths[:most].sort(descending=True, stable=True)
    return torch.cat((starts[by_length], starts[most:])), lengths


def document_blocks(at: Positions, count: int, block: int) -> Tensor:
    """(n, 4), int32: row, first token, end and number of each block of a document, the longest rows of tiles first. n
    is the most that there may be of ``count`` documents; what is too much ends at 0."""
    rows, width = at.shape
    starts, lengths = document_starts(at, count)
    blocks = (lengths + block - 1) // block
    behind = blocks.cumsum(0)  # all blocks up to the end of each document
    n = torch.arange(rows * width // block + count, device=at.device)
    of = torch.searchsorted(behind, n, right=True)
    inside, of = of < count, of.clamp(max=count - 1)
    number = n - (behind - blocks)[of]
    first = starts[of] % width
    items = torch.stack((starts[of] // width, first, first + lengths[of], number), 1) * inside[:, None]
    return items[number.where(inside, -1).argsort(descending=True, stable=True)].to(torch.int32)
