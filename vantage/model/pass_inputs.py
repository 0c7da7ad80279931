"""What a forward pass is given besides its tokens: where these stand, and what does not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.errors import BadInput, CacheError
from vantage.spec.images import ImageTokens
from vantage.spec.parts import EncoderOutput
from vantage.spec.positions import Positions


def check_mask(mask: Tensor | None, positions: Positions | Tensor | None, size: tuple[int, int]) -> None:
    """Refuse a padding mask beside positions, or of another size than the tokens (B, T)."""
    if positions is not None and mask is not None:
        raise BadInput("give positions or a mask, not both: positions of -1 are padding")
    if mask is not None and tuple(mask.shape) != size:
        raise BadInput(
            f"the mask has shape {tuple(mask.shape)}, the tokens {size}: give one entry per token of this call"
        )


def declared_length(cache: ModelCache, rows: int, length: int | None) -> int | None:
    """The length that a cache was made for; refuses another one, and another number of rows."""
    if cache.batch != rows:
        raise CacheError(
            f"the cache holds {cache.batch} rows, the tokens {rows}: use one row each, or new_cache(batch={rows})"
        )
    if length is not None and length != cache.length:
        raise CacheError(f"length={length}, but this cache was made for {cache.length} for good: use model.grow(...)")
    return cache.length


def next_positions(
    size: tuple[int, int], device: torch.device, cache: ModelCache | None, mask: Tensor | None
) -> Positions:
    """Each row goes on where it stopped."""
    B, T = size
    if cache is None:
        return Positions.arange(B, T, device=device) if mask is None else Positions.from_mask(mask)
    start = cache.next_positions
    if mask is not None:
        where = Positions.from_mask(mask, start.order)
    elif start.host is not None:
        where = Positions.arange(B, T, start.host, device=device)
    else:
        where = Positions.onward(start.order, T)
    return where if start.ahead is None else where.ahead(start.ahead)


def for_rows(positions: Positions | Tensor, size: tuple[int, int]) -> Positions:
    """Positions of every token (B, T); one row of them serves all."""
    if isinstance(positions, Tensor):
        positions = Positions.of(positions)
    if positions.shape == size:
        return positions
    if positions.shape != (1, size[1]):
        raise BadInput(f"positions have shape {positions.shape}, the tokens {size}: they must agree")
    return positions.expand(size[0])


def check_source(memory: EncoderOutput | None, cache: ModelCache | None, rows: int, *, reads: bool) -> None:
    """Refuse a source that is missing, or one too many. ``reads``: the model has an encoder."""
    if not reads:
        if memory is not None:
            raise BadInput("this model has no encoder: leave source out")
    elif memory is None and (cache is None or not cache.has_memory):
        raise BadInput("this model reads a source: pass source=, or a cache that already holds one")
    elif memory is not None and cache is not None and cache.has_memory:
        raise CacheError("this cache already holds a source: leave source out, or start with a new cache")
    elif memory is not None and len(memory.hidden) != rows:
        raise BadInput(f"the source has {len(memory.hidden)} rows, the tokens {rows}: give one for each")


def check_images(images: ImageTokens | None, pos: Positions, *, reads: bool) -> None:
    """Refuse images for a model without a tower, and those that do not fit these tokens."""
    if images is not None:
        if not reads:
            raise BadInput("this model reads no images: leave images out")
        images.check(pos.shape)


def in_pieces(
    tokens: Tensor,
    pos: Positions,
    cache: ModelCache,
    source: EncoderOutput | None,
    types: Tensor | None,
    images: ImageTokens | None,
    watch: Any,
) -> Iterator[tuple[Any, ...]]:
    """Passes as wide as the cache takes them, each as (tokens, positions, cache, mask, length, source, types, images,
    watch).

    How wide the next one is, is asked when it is taken: the one before must have run by then. A piece is kept, or none
    of it.
    """
    at, end = 0, pos.shape[1]
    while at < end:
        width = cache.widest(rest := pos.narrow(at, end - at))
        piece = None if types is None else types[:, at : at + width]
        seen = None if images is None else images.narrow(at, width)
        part = tokens[:, at : at + width]
        yield part, rest.narrow(0, width), cache, None, None, None if at else source, piece, seen, watch
        at += width
