"""Where things go: a ledger places what arrives, and knows the position of all that is held.

A cache is a ledger times a store. One ledger serves all layers of a model that keep the same
arrangement, so positions, masks and places are worked out once per pass, not once per layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from vantage.cache.dump import DumpReader, LedgerDump
from vantage.cache.facts import NextPositions
from vantage.cache.moves import BlockCopies, BufferRead, BufferWrite, Packing
from vantage.cache.report import Holding, RowHolding, spans
from vantage.errors import BadInput, CacheError
from vantage.spec.positions import Positions
from vantage.spec.selected import Selected


@final
@dataclass(eq=False, slots=True)
class Step:
    """What one pass does to every layer's store. The same object for all of them."""

    write: BufferWrite | None  # None: this step only looks
    read: BufferRead
    view_pos: Positions  # the positions of what is read: one object, so that masks are built once
    places: int  # how many places a buffer must have
    deferred: bool = False  # the write waits until the pass is committed
    void: bool = False  # the pass failed: a write that still waits is dropped
    selected: Selected | None = None  # of a ledger that forgets: how what is read is to be seen
    packing: Packing | None = None  # of a ledger that packs groups of tokens


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """Where the tokens of an open pass and all before them stand, for kernels that read and write in place.

    Token i of row b is at place ``i - first`` of its row, in a ring at place ``i % ring``, or, in a pool, at place
    ``i % block`` of block ``blocks[b][i // block - gone[b]]``. In every row the order goes on by one.
    """

    held: tuple[int, ...]  # tokens of each row before this pass
    run: bool  # every row is one plain run, in pos and order alike
    blocks: tuple[tuple[int, ...], ...] | None = None
    block: int = 0
    gone: tuple[int, ...] = ()  # blocks at the front of each row that were given back
    ring: int = 0  # places of a row that are written over in turn; 0: no ring
    first: int = 0  # the first token that is there
    deferred: bool = False  # these places are a copy's, since the write waits until the pass is committed


@final
@dataclass(frozen=True, eq=False)
class LedgerExtension:
    """Tokens that a ledger holds from now on, and that a kernel will write by itself."""

    layout: Layout
    first: int  # the position of each row's token 0
    places: int  # how many places a buffer must have
    copies: BlockCopies | None = None  # to be done before anything is written


@final
@dataclass(frozen=True, eq=False)
class Savepoint:
    """A state to come back to. Good for the one pass that follows it, until that is committed."""

    ledger: Ledger
    epoch: object


@runtime_checkable
class Piecewise(Protocol):
    """A ledger for which a long pass may have to be cut."""

    def widest(self, pos: Positions) -> int:
        """How many columns of these may make one pass."""
        ...


class Ledger(ABC):
    """The protocol. All of a pass is checked before any of it is done: what is refused changes nothing."""

    kind: ClassVar[str]  # its name in a dump
    evicts_because = "left the window"
    late = False  # True: keys are kept as they come and turned when they are read

    def __init__(self, batch: int, device: torch.device | str | None):
        if batch < 1:
            raise BadInput(f"a cache for {batch} rows: give at least 1")
        self.batch = batch
        if not isinstance(device, torch.device) or device.index is None:
            device = torch.empty(0, device=device).device  # "cuda" has become "cuda:0", as tensors say it
        self.device = device
        self._pos: Positions | None = None  # of the open pass; kept, so that its identity stays taken
        self._step: Step | None = None
        self._seen: Step | None = None
        self._epoch = object()  # another one after every change, so that a savepoint can tell

    # ---- one pass

    def place(self, pos: Positions) -> Step:
        """Make room for these positions. Every layer calls this with the same object and gets the same step."""
        if pos is self._pos and self._step is not None:
            return self._step
        rows, width = pos.shape
        if rows != self.batch:
            raise BadInput(f"{rows} rows for a cache of {self.batch}: make the cache with batch={rows}, or reorder it")
        if width == 0:
            raise BadInput("no tokens to append: give at least one column")
        if pos.device != self.device:
            raise BadInput(f"positions on {pos.device}, cache on {self.device}: use pos.to({str(self.device)!r})")
        self.commit()
        step = self._append(pos)
        self._pos, self._step, self._seen = pos, step, None
        return step

    def savepoint(self) -> Savepoint:
        """Before a pass: where ``roll_back`` comes back to."""
        self.commit()
        return Savepoint(self, self._epoch)

    def roll_back(self, savepoint: Savepoint) -> None:
        """Undo the pass that followed the savepoint."""
        if savepoint.ledger is not self or savepoint.epoch is not self._epoch:
            raise CacheError("this savepoint is no longer good: it serves the one pass after it, until it is committed")
        if self._step is not None:
            self._step.void = True
            self._undo()
            self._pos = self._step = self._seen = None

    def commit(self) -> None:
        """The pass has succeeded."""
        if self._step is not None:
            self._done()
            self._pos = self._step = None
            self._epoch = object()

    def look(self) -> Step:
        """All that is held, to be read without appending."""
        if self._step is not None:
            return self._step
        if self._seen is None:
            if not self.holding:
                raise CacheError("this cache holds nothing yet: append to it before looking at it")
            self._seen = self._look()
        return self._seen

    def layout(self) -> Layout | None:
        """Where the open pass stands; ``None``: only its reads and writes know."""
        return None if self._step is None else self._layout()

    # ---- several steps at once

    @property
    def extensible(self) -> bool:
        """Whether ``extend`` works: every row is one plain run, in an arrangement that kernels can write in place."""
        return False

    def extend(self, tokens: int) -> LedgerExtension:
        """Hold so many tokens more in every row, which a kernel will write. What is too much can be cropped."""
        raise CacheError(f"a cache that is {self.name} takes tokens in passes only")

    # ---- between passes

    def crop(self, to: int | Sequence[int]) -> None:
        """Keep only what has an order below ``to`` (one for all rows, or one a row)."""
        rows = self.check_crop(to)
        self.commit()
        self._crop(rows)
        self._changed()

    def check_crop(self, to: int | Sequence[int]) -> tuple[int, ...]:
        """``to`` for every row; raises where that cannot be done exactly."""
        rows = (to,) * self.batch if isinstance(to, int) else tuple(int(n) for n in to)
        if len(rows) != self.batch:
            raise BadInput(f"crop to {len(rows)} values for {self.batch} rows: give one number, or one a row")
        if min(rows) < 0:
            raise BadInput(f"crop to {min(rows)}: give 0 (empty the row) or more")
        self._check_crop(rows)
        return rows

    def reorder(self, index: Sequence[int] | Tensor) -> None:
        """Row i becomes what row index[i] was; there may be more or fewer rows afterwards."""
        rows = self.check_index(index)
        self.commit()
        self.batch = len(rows)
        self._pick(rows)
        self._changed()

    def check_index(self, index: Sequence[int] | Tensor) -> tuple[int, ...]:
        """The index as numbers (read back from a device); raises if a row does not exist."""
        rows = tuple(int(i) for i in (index.tolist() if isinstance(index, Tensor) else index))
        if not rows or min(rows) < 0 or max(rows) >= self.batch:
            raise BadInput(f"reorder by {list(rows)}: give rows from 0 to {self.batch - 1}, at least one")
        return rows

    def free(self) -> None:
        """Hold nothing any more."""
        self.commit()
        self._clear()
        self._changed()

    def _changed(self) -> None:
        self._seen = None
        self._epoch = object()

    # ---- what it holds

    def holds(self) -> Holding:
        """What is held, by position. Reads tensors back: a report, not for a hot loop."""
        rows = [RowHolding((), (), evicted, 0) for evicted in self._evicted()]
        if self.holding:
            where = self.look().view_pos
            held = zip(where.pos.tolist(), where.order.tolist(), self._evicted(), self._shared(), strict=True)
            rows = [
                RowHolding(
                    spans(o for o in order if o >= 0),
                    spans(p for p, o in zip(pos, order, strict=True) if o >= 0),
                    gone,
                    own,
                )
                for pos, order, gone, own in held
            ]
        return Holding(self.name, tuple(rows), len(rows) // self.batch, self.evicts_because)

    @property
    @abstractmethod
    def name(self) -> str:
        """The arrangement in a few words, for reports."""

    @property
    @abstractmethod
    def places(self) -> int:
        """How many places a buffer must have now."""

    @property
    @abstractmethod
    def holding(self) -> bool:
        """Whether anything is held."""

    @property
    @abstractmethod
    def used(self) -> int:
        """How many places from the front hold all there is."""

    @property
    @abstractmethod
    def capacity(self) -> int | None:
        """How many tokens a row can hold; ``None``: it grows."""

    @property
    def pooled(self) -> bool:
        """Whether rows share a pool: buffers are (G, places, w), else (B, G, places, w)."""
        return False

    @property
    @abstractmethod
    def tokens(self) -> tuple[int, ...]:
        """Tokens each row stands for, those that left a window included. May read a device."""

    @property
    @abstractmethod
    def next_positions(self) -> NextPositions: ...

    @abstractmethod
    def fork(self) -> Ledger:
        """An independent ledger that holds the same."""

    @abstractmethod
    def fresh(self, batch: int) -> Ledger:
        """An empty ledger of the same arrangement."""

    # ---- as plain data

    @abstractmethod
    def dump(self) -> LedgerDump:
        """All that is needed to make this ledger again."""

    @classmethod
    @abstractmethod
    def from_dump(cls, saved: DumpReader, device: torch.device) -> Ledger:
        """The ledger that was dumped so; raises ``CheckpointError`` where a dump cannot be one."""

    @property
    @abstractmethod
    def kept_places(self) -> Tensor | int:
        """The places of a buffer that belong to a dump: so many from the front, or these."""

    # ---- what an arrangement must do

    @abstractmethod
    def _append(self, pos: Positions) -> Step:
        """Check, then change the state."""

    @abstractmethod
    def _undo(self) -> None:
        """Go back to the state before ``_append``."""

    @abstractmethod
    def _done(self) -> None:
        """Let go of what ``_undo`` would have needed."""

    @abstractmethod
    def _look(self) -> Step: ...

    @abstractmethod
    def _check_crop(self, to: tuple[int, ...]) -> None: ...

    @abstractmethod
    def _crop(self, to: tuple[int, ...]) -> None: ...

    @abstractmethod
    def _layout(self) -> Layout | None: ...

    @abstractmethod
    def _pick(self, index: tuple[int, ...]) -> None: ...

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _evicted(self) -> tuple[int, ...]:
        """Tokens of each row that left the window for good."""

    @abstractmethod
    def _shared(self) -> tuple[int, ...]:
        """Tokens of each row that another row or cache holds too."""


class FixedSizeLedger(Ledger):
    """A row has as many places as it will ever have, and one more, where empty places are written and nobody reads."""

    _size: int

    @property
    def places(self) -> int:
        return self._size + 1

    @property
    def used(self) -> int:
        return self.places

    @property
    def capacity(self) -> int | None:
        return self._size


class LastTokensLedger(FixedSizeLedger):
    """Rows of fixed size that let go of what came early, and know where they began."""

    @abstractmethod
    def _limits(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The first position, the lowest that is held and the next one, of every row. May read a device."""

    @property
    def tokens(self) -> tuple[int, ...]:
        starts, _, ends = self._limits()
        return tuple(end - start for start, end in zip(starts, ends, strict=True))
