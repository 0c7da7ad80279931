"""A mask as numbers, for kernels that know the usual ones."""

from __future__ import annotations

from typing import NamedTuple

import torch

from vantage.spec.masks import (
    Causal,
    Chunked,
    Everything,
    Filled,
    Mask,
    Nothing,
    Or,
    Prefix,
    SameSegment,
    Window,
    conjuncts,
)

MAX_KEPT = 256


class MaskFlags(NamedTuple):
    """((causal and window and chunk) or prefix) and segments; 0 where there is no such condition."""

    causal: bool = False
    window: int = 0
    chunk: int = 0
    prefix: int = 0
    segments: bool = False
    nothing: bool = False  # no key is seen by anyone

    @property
    def one_sided(self) -> bool:
        """Whether no query sees a key behind it."""
        return self.causal and not self.prefix


# Masks are asked for several times in each layer. Those with flags are plain data; others may hold tensors, and are not
# kept alive here.
_kept: dict[Mask, MaskFlags] = {}


def mask_flags(mask: Mask) -> MaskFlags | None:
    """``None``: this mask is made in another way. That empty places are unseen goes without saying."""
    if torch.compiler.is_compiling():
        return _read(mask)
    flags = _kept.get(mask)
    if flags is None and (flags := _read(mask)) is not None and len(_kept) < MAX_KEPT:
        _kept[mask] = flags
    return flags


def _read(mask: Mask) -> MaskFlags | None:
    if mask == Nothing():
        return MaskFlags(nothing=True)
    parts = [part for part in conjuncts(mask) if part not in (Everything(), Filled())]
    segments = SameSegment() in parts
    parts = [part for part in parts if part != SameSegment()]
    prefix = 0
    if len(parts) == 1 and isinstance(parts[0], Or):
        inner, last = parts[0].a, parts[0].b
        inner, last = (last, inner) if isinstance(inner, Prefix) else (inner, last)
        if not isinstance(last, Prefix):
            return None
        prefix, parts = last.n, conjuncts(inner)
    if not all(isinstance(part, Causal | Window | Chunked) for part in parts):
        return None
    windows = [part.n for part in parts if isinstance(part, Window)]
    chunks = {part.n for part in parts if isinstance(part, Chunked)}
    if len(chunks) > 1:
        return None
    return MaskFlags(Causal() in parts, min(windows, default=0), max(chunks, default=0), prefix, segments)
