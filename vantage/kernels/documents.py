"""Where documents lie in packed rows, worked out on the device: nothing is read back. A whole row is one, too."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from vantage.kernels.by_form import runs
from vantage.kernels.gluon import has_gluon
from vantage.kernels.mask_flags import MaskFlags, mask_flags
from vantage.spec.parts import Need, View
from vantage.spec.positions import Pair, Positions

HOPPER_TILE = 128  # queries and keys of a tile of the passes for Hopper, and the fewest queries they pay for
HALF_TILE = 64  # queries of a tile of their backward pass
SHORTEST_WINDOW = 256  # of those that the backward pass was tried with
HEADS = (64, 128)  # widths of heads that gpu/hopper_rows.py and its backward pass have


def documents_on_hopper(q: Tensor, k: Tensor, v: Tensor, flags: MaskFlags, pair: Pair) -> int | None:
    """How many documents there are, where gpu/hopper_rows.py has their mask, heads and places: they look back at
    themselves, and there is no empty place. ``None`` where it has not."""
    if flags != MaskFlags(causal=True, segments=True) or not _on_hopper(q, k, v) or pair.q.known.empty:
        return None
    documents = documents_alone(pair)
    return None if documents is None else documents[0]


def rows_on_hopper(q: Tensor, k: Tensor, v: Tensor, flags: MaskFlags, pair: Pair) -> bool:
    """Whether gpu/hopper_rows_backward.py has whole rows: they look back at themselves, as far as they reach or in a
    window, and their positions never fall. gpu/hopper_rows.py has these without a window."""
    if not _of_rows(flags) or not _on_hopper(q, k, v):
        return False
    same = pair.q.order is pair.k.order and pair.q.pos is pair.k.pos and pair.q.known.rising
    return same or (runs(pair) and pair.q.known.first == pair.k.known.first)


def gradients_on_hopper(need: Need, q: Tensor, view: View) -> bool:
    """``rows_on_hopper`` and ``may_add_up`` of a pass with gradients, as far as can be told without the queries'
    positions."""
    flags = mask_flags(need.mask)
    if not torch.is_grad_enabled() or flags is None or not view.pos.known.rising:
        return False
    if view.pos.segment is None:  # then there are no documents to keep apart
        flags = flags._replace(segments=False)
    return _of_rows(flags) and _on_hopper(q, view.k, view.v) and may_add_up(q, view.k, len(q))


def _of_rows(flags: MaskFlags) -> bool:
    alone = flags == MaskFlags(causal=True, window=flags.window)
    return alone and (not flags.window or flags.window >= SHORTEST_WINDOW)


def _on_hopper(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether they have as many keys as queries, and such heads."""
    if torch.compiler.is_compiling() or not has_gluon(q.device):
        return False
    enough = k.shape[2] == q.shape[2] >= HOPPER_TILE
    return enough and q.shape[3] in HEADS and v.shape[3] == q.shape[3] and q.element_size() == 2


def blocks_of_queries(pair: Pair, documents: int) -> Tensor:
    """``document_blocks``, made once for all layers."""
    with torch.inference_mode(False):  # they serve training as well
        return pair.once("document blocks", lambda: document_blocks(pair.q, documents, HOPPER_TILE))


def blocks_of_keys(q: Tensor, k: Tensor, pair: Pair, documents: int) -> Tensor | None:
    """``key_blocks``, made once for all layers; ``None`` where the backward pass does not run (``may_add_up``)."""
    if not may_add_up(q, k, documents):
        return None
    with torch.inference_mode(False):
        return pair.once("key blocks", lambda: key_blocks(pair.q, documents, HOPPER_TILE, HALF_TILE))


def may_add_up(q: Tensor, k: Tensor, documents: int) -> bool:
    """Whether the backward pass may have its sums of queries' gradients: float32 and in whole blocks for each document
    or row, they must not take more memory than q, k, v and the output; and they have no order, so that torch must not
    be told to be deterministic."""
    B, H, T, _ = q.shape
    return documents * HOPPER_TILE * H <= B * T * k.shape[1] and not torch.are_deterministic_algorithms_enabled()


@functools.lru_cache(maxsize=64)
def blocks_of_rows(rows: int, tokens: int, window: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """``document_blocks`` and ``key_blocks`` of whole rows. Kept from pass to pass: lengths come again."""
    with torch.inference_mode(False):
        at = Positions.packed([[tokens]] * rows)
        lists = document_blocks(at, rows, HOPPER_TILE), key_blocks(at, rows, HOPPER_TILE, HALF_TILE, window)
        return lists[0].to(device), lists[1].to(device)


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


def key_blocks(at: Positions, count: int, block: int, tile: int, window: int = 0) -> Tensor:
    """(n + 1, 4), int32: of each block of a document's keys its first token, counted over all rows, how many tokens
    there are from there to the document's end, how many tiles have one that sees one of its keys, and the number of its
    first tile where documents have whole blocks each. The most tiles first; before them, how many blocks there are."""
    rows, width = at.shape
    starts, lengths = document_starts(at, count)
    blocks = (lengths + block - 1) // block
    behind = blocks.cumsum(0)
    n = torch.arange(rows * width // block + count, device=at.device)
    of = torch.searchsorted(behind, n, right=True)
    inside, of = of < count, of.clamp(max=count - 1)
    number = n - (behind - blocks)[of]
    left = ((lengths[of] - number * block) * inside).clamp(min=0)
    seen_by = left.clamp(max=block - 1 + window) if window else left
    tiles = (seen_by + tile - 1) // tile
    items = torch.stack((starts[of] + number * block, left, tiles, n * (block // tile)), 1)
    head = torch.nn.functional.pad(inside.sum()[None, None], (0, 3))
    return torch.cat((head, items[tiles.argsort(descending=True, stable=True)])).to(torch.int32)


def is_side_by_side(x: Tensor) -> bool:
    """Whether the heads of a token lie side by side, all tokens at one distance, and as the copy engine wants them."""
    _, _, tokens, width = x.shape
    one_distance = len(x) == 1 or x.stride(0) == tokens * x.stride(2)
    even = x.stride(2) * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0
    return x.stride(3) == 1 and x.stride(1) == width and one_distance and even and x.stride(2) > 0
