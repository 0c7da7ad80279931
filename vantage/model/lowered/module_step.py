"""A step of a model that has no lowered form: its own modules, over places that stand on the device.

Nothing of it depends on a number of the host's, so it can be a CUDA graph like a lowered step. Keys and values are read
whole, a static cache's buffers or all blocks of a row's table, and where no token has been written the position is -1.
The graph holds the very buffers: it is made anew when they become others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vantage.cache import ModelCache, Paged, Static
from vantage.cache.layer_cache import LayerCache
from vantage.cache.moves import BufferRead, BufferWrite, Gathered, PoolPlaces, Scatter, Span
from vantage.cache.placed import PlacedCache
from vantage.cache.pool import BIN
from vantage.spec.native import asks_host
from vantage.spec.positions import EMPTY, Known, Positions

if TYPE_CHECKING:
    from vantage.kernels.gpu.decode import RowState


def uncaptured(model: Any) -> str | None:
    """Why no graph can be made of a model's modules; ``None``: nothing is known that speaks against it."""
    if model.spec.keeps_states:
        return "it keeps states, which every pass makes anew"
    if model.dtype is torch.float64:
        return "it computes in float64, and a graph's logits are float32"
    return asks_host(model)


@dataclass
class ModuleProgram:
    """Stands where a lowered program would. ``why``: what the model has no form for."""

    why: str
    dtype: torch.dtype
    tensors: list[Tensor] = field(default_factory=list)

    @staticmethod
    def of(model: Any, why: str) -> ModuleProgram:
        return ModuleProgram(why, model.dtype, [*model.parameters(), *model.buffers()])

    def takes(self, cache: ModelCache) -> bool:
        """Whether a step with this cache can be placed by the device."""
        plain = not cache.cross and not cache.states and cache.ahead is None
        return plain and all(isinstance(ledger, (Paged, Static)) for ledger in cache.ledgers)


class ModuleStep:
    """The modules of one step for so many rows, over the buffers of these layers."""

    def __init__(self, model: Any, layers: Sequence[LayerCache], ledgers: Sequence[int], top: int, length: int | None):
        self._model, self._ledgers, self._length = model, ledgers, length
        self._stores = [(layer.store.tensors, layer.store.codec, layer.store.streams) for layer in layers]
        self._places = {i: layer.ledger.places for i, layer in zip(ledgers, layers, strict=True)}
        limits = [n for n in (model.max_positions, length) if n is not None]
        self._top = min(top, *(n - 1 for n in limits)) if limits else top

    def logits(self, tokens_B: Tensor, held_B: Tensor, pos_B: Tensor, rows: Sequence[RowState]) -> Tensor:
        """(B, V). A row that is not in use counts as an empty one, whose token goes where nobody reads."""
        held, at = held_B.to(torch.int64)[:, None], pos_B.to(torch.int64)[:, None]
        alone = len(at) == 1
        pos = Positions(at, at, None, self._known(empty=False, alone=alone), self._length)
        placed = [
            _in_blocks(row, held, at) if row.block else _in_rows(self._places[i] - 1, held, at)
            for i, row in enumerate(rows)
        ]
        views = [Positions(p, p, None, self._known(empty=True, alone=alone), self._length) for _, _, p in placed]
        caches = [
            PlacedCache(buffers, codec, streams, *placed[i][:2], views[i])
            for (buffers, codec, streams), i in zip(self._stores, self._ledgers, strict=True)
        ]
        model = self._model
        x = model.embed(tokens_B[:, None], pos, None)
        return model.head(model.run(x, model.placed_context(pos, caches)))[:, 0]

    def _known(self, *, empty: bool, alone: bool) -> Known:
        return Known(None, None, (0, self._top), None, empty=empty, same_rows=alone)


def _in_blocks(row: RowState, held_B1: Tensor, pos_B1: Tensor) -> tuple[BufferWrite, BufferRead, Tensor]:
    """How a token of each row is written, how what it sees is read, and where that stands, (B, S)."""
    table, gone, size = row.table.to(torch.int64), row.gone.to(torch.int64)[:, None], row.block
    held = held_B1.clamp_min(0)
    block = torch.where(held_B1 < 0, BIN, table.gather(1, held // size - gone))
    places = table.shape[1] * size
    number = torch.arange(places, device=table.device) + gone * size  # which token of its row
    pos = torch.where(number <= held, number + (pos_B1 - held), EMPTY)
    return PoolPlaces(block * size + held % size), Gathered(table, size, places), pos


def _in_rows(size: int, held_B1: Tensor, pos_B1: Tensor) -> tuple[BufferWrite, BufferRead, Tensor]:
    """The same for rows that own their places, and one more where nobody reads."""
    number = torch.arange(size, device=held_B1.device)
    pos = torch.where(number <= held_B1, number + (pos_B1 - held_B1), EMPTY)
    return Scatter(torch.where(held_B1 < 0, size, held_B1)), Span(0, size), pos
