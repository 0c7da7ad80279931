"""States of constant size, whatever the length: a delta rule's matrix, the last inputs of a convolution.

A state is never written into. Every pass brings new ones, and a row holds references to those it may go back to: after
each of its last ``draft`` tokens, and at every multiple of ``every``. So a fork copies nothing, rows can be picked and
put together, and going back is taking an earlier reference. What is no longer held is refused, as a ring refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.cache.codecs import DTYPES, WIDEST
from vantage.cache.dump import damaged
from vantage.errors import BadInput, CacheError
from vantage.spec.kept import StateShape
from vantage.spec.positions import Positions


@final
class BatchStates:
    """The states of all rows after one column of a pass."""

    def __init__(self, ends_B: Tensor, tensors: tuple[Tensor, ...]):
        self.ends = ends_B
        self._read: list[int] | None = None
        self.tensors = tensors  # each (B, *shape)

    def end(self, row: int) -> int:
        """The order that follows the last token of this state. Reads a device, once."""
        if self._read is None:
            self._read = self.ends.tolist()
        return self._read[row]


@final
@dataclass(frozen=True, eq=False)
class StateSnapshot:
    """One row's states after some token."""

    states: BatchStates
    row: int

    @property
    def end(self) -> int:
        return self.states.end(self.row)

    @property
    def end_tensor(self) -> Tensor:
        """The same without reading a device."""
        return self.states.ends[self.row]

    def tensor(self, i: int) -> Tensor:
        return self.states.tensors[i][self.row]


@final
class StateRows:
    """The states of one layer, row by row."""

    def __init__(
        self,
        shapes: tuple[StateShape, ...],
        batch: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        draft: int = 0,
        every: int | None = None,
    ):
        self.shapes = shapes
        self._dtype, self._device = dtype, device
        self._draft, self._every = draft, every
        self.rows: list[tuple[StateSnapshot, ...]] = [()] * batch
        self._pending: list[tuple[StateSnapshot, ...]] | None = None

    # ---- a pass

    def read(self, x_BTD: Tensor | None = None) -> tuple[Tensor, ...]:
        """(B, *shape) of each: as they are before these tokens. Zeros where a row holds nothing."""
        newest = [row[-1] if row else None for row in self.rows]
        first = newest[0]
        if first is not None and all(
            s is not None and s.states is first.states and s.row == b for b, s in enumerate(newest)
        ):
            return tuple(t[: len(newest)] for t in first.states.tensors)
        return tuple(
            torch.stack([self._zeros(shape) if s is None else s.tensor(i) for s in newest])
            for i, shape in enumerate(self.shapes)
        )

    def wanted(self, pos: Positions) -> tuple[int, ...]:
        """After which columns of this pass the states are kept, rising; always after the last."""
        width = pos.shape[1]
        columns = set(range(max(0, width - 1 - self._draft), width))
        if self._every is not None and (ends := pos.known.first) is not None:
            columns |= {c for c in range(width) if (ends + c + 1) % self._every == 0}
        return tuple(sorted(columns))

    def write(self, pos: Positions, columns: Sequence[int], states: Sequence[tuple[Tensor, ...]]) -> None:
        """After each of these columns the states (B, *shape)."""
        wanted = [(pos.shape[0], *shape.shape) for shape in self.shapes]
        for tensors in states:
            if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
                raise BadInput("a cache keeps no gradients: use torch.no_grad() with a cache, or no cache to train")
            if [tuple(t.shape) for t in tensors] != wanted:
                raise BadInput(f"states of {[tuple(t.shape) for t in tensors]} for a cache that takes {wanted}")
        ends = pos.order.cummax(1).values + 1
        if pos.known.empty:  # a row may have no token in this pass, and stands where it stood
            ends = torch.maximum(ends, self._ends(pos)[:, None])
        new = [BatchStates(ends[:, c], tensors) for c, tensors in zip(columns, states, strict=True)]
        self._pending = [self._trimmed((*row, *(StateSnapshot(s, b) for s in new))) for b, row in enumerate(self.rows)]

    def _ends(self, pos: Positions) -> Tensor:
        """(B,): the order that follows each row's newest state."""
        none = torch.zeros((), dtype=pos.order.dtype, device=pos.device)
        return torch.stack([row[-1].end_tensor if row else none for row in self.rows])

    def _trimmed(self, row: tuple[StateSnapshot, ...]) -> tuple[StateSnapshot, ...]:
        cut = max(0, len(row) - 1 - self._draft)
        old = row[:cut] if self._every is not None else ()
        return (*(s for s in old if s.end % (self._every or 1) == 0), *row[cut:])

    def commit(self) -> None:
        if self._pending is not None:
            self.rows, self._pending = self._pending, None

    def abandon(self) -> None:
        self._pending = None

    # ---- between passes

    def nearest(self, row: int, to: int) -> int:
        """The highest order up to ``to`` that this row can go back to."""
        return max((s.end for s in self.rows[row] if s.end <= to), default=0)

    def check_crop(self, to: Sequence[int]) -> None:
        for b, (row, limit) in enumerate(zip(self.rows, to, strict=True)):
            if row and row[-1].end > limit and self.nearest(b, limit) != limit:
                ends = ", ".join(str(s.end) for s in row)
                raise CacheError(
                    f"cannot take row {b} back to {limit}: its states are held for {ends} tokens only; "
                    f"make the cache with a draft of {row[-1].end - limit} or more"
                )

    def crop(self, to: Sequence[int]) -> None:
        self.rows = [tuple(s for s in row if s.end <= limit) for row, limit in zip(self.rows, to, strict=True)]

    def reorder(self, index: Sequence[int]) -> None:
        self.rows = [self.rows[i] for i in index]

    def fork(self) -> StateRows:
        return self.of_rows(self.rows)

    def of_rows(self, rows: Sequence[tuple[StateSnapshot, ...]]) -> StateRows:
        """The same arrangement with these rows."""
        other = StateRows(
            self.shapes, len(rows), dtype=self._dtype, device=self._device, draft=self._draft, every=self._every
        )
        other.rows = list(rows)
        return other

    def fresh(self, batch: int) -> StateRows:
        return self.of_rows([()] * batch)

    def free(self) -> None:
        self.rows = [()] * len(self.rows)

    # ---- what it holds

    @property
    def bytes(self) -> int:
        """What its tensors take, each counted once."""
        batches = {id(s.states): s.states for row in self.rows for s in row}
        return sum(t.nbytes for batch in batches.values() for t in batch.tensors)

    def describe(self) -> dict[str, Any]:
        """What JSON can hold: enough for ``from_description``."""
        shapes = [[list(s.shape), s.wide] for s in self.shapes]
        dtype = str(self._dtype).removeprefix("torch.")
        return {"shapes": shapes, "dtype": dtype, "draft": self._draft, "every": self._every}

    @staticmethod
    def from_description(saved: Mapping[str, Any], batch: int, device: torch.device) -> StateRows:
        shapes, dtype, draft, every = (saved.get(name) for name in ("shapes", "dtype", "draft", "every"))
        if not isinstance(shapes, list) or str(dtype) not in DTYPES:
            damaged(f"a layer keeps the states {str(dict(saved))[:80]!r}")
        numbers = [n for n in (draft, 1 if every is None else every) if type(n) is int and 0 <= n < WIDEST]
        kept = [StateShape(tuple(shape), wide) for shape, wide in map(_shape_of, shapes)]
        if len(numbers) < 2 or every == 0:
            damaged(f"a layer keeps the states {str(dict(saved))[:80]!r}")
        return StateRows(tuple(kept), batch, dtype=DTYPES[str(dtype)], device=device, draft=numbers[0], every=every)

    def dump(self) -> list[Tensor]:
        """The newest states, (B, *shape) of each, in host memory; and where each row stands, (B,)."""
        ends = torch.tensor([row[-1].end if row else 0 for row in self.rows])
        return [ends, *(t.cpu().contiguous() for t in self.read())]

    def load(self, tensors: Sequence[Tensor]) -> None:
        """Put there what ``dump`` gave; raises ``CheckpointError`` where that does not fit."""
        ends, *states = tensors
        wanted = [((len(self.rows), *s.shape), s.dtype(self._dtype)) for s in self.shapes]
        if [(tuple(t.shape), t.dtype) for t in states] != wanted or ends.dtype != torch.int64 or ends.dim() != 1:
            damaged(f"its states are not {wanted}")
        if len(ends) != len(self.rows) or bool((ends < 0).any()):
            damaged("its states do not say where they stand")
        batch = BatchStates(ends, tuple(t.to(self._device) for t in states))
        self.rows = [(StateSnapshot(batch, b),) if int(end) else () for b, end in enumerate(ends)]

    @property
    def tensor_count(self) -> int:
        """How many tensors a dump has."""
        return 1 + len(self.shapes)

    def _zeros(self, shape: StateShape) -> Tensor:
        return torch.zeros(shape.shape, dtype=shape.dtype(self._dtype), device=self._device)


def _shape_of(saved: Any) -> tuple[list[int], bool]:
    shape, wide = saved if isinstance(saved, list) and len(saved) == 2 else (None, None)
    if not isinstance(shape, list) or not isinstance(wide, bool):
        damaged(f"a layer keeps a state {str(saved)[:80]!r}")
    if not all(type(n) is int and 0 < n < WIDEST for n in shape):
        damaged(f"a layer keeps a state {str(saved)[:80]!r}")
    return shape, wide


@final
class NoStates:
    """For a pass without a cache: nothing was before, nothing is kept."""

    def __init__(self, shapes: tuple[StateShape, ...]):
        self.shapes = shapes

    def read(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        rows, dtype, device = len(x_BTD), x_BTD.dtype, x_BTD.device
        return tuple(torch.zeros((rows, *s.shape), dtype=s.dtype(dtype), device=device) for s in self.shapes)

    def wanted(self, pos: Positions) -> tuple[int, ...]:
        return ()

    def write(self, pos: Positions, columns: Sequence[int], states: Sequence[tuple[Tensor, ...]]) -> None:
        pass
