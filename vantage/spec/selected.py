"""What a cache that forgets adds to a view: how the keys that it has kept are to be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from vantage.spec.masks import Mask
from vantage.spec.positions import Positions


@final
@dataclass(frozen=True, eq=False)
class Selected:
    """Every field is empty where it is not needed."""

    mask: Mask | None = None  # hides more than the layer's own mask does
    # where the queries stand, if the cache numbers tokens anew: then the view's keys stand at numbers too
    queries: Positions | None = None
    heads: int = 1  # more: every key/value head keeps keys of its own, and has its own row of ``View.pos``
    observe: Callable[[Tensor], None] | None = None  # wants the weights (B, H, T, S) of the pass
