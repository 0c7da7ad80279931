"""What a cache that forgets keeps: rules over the entries of a row, and what each asks of a pass.

``SinkWindow`` (StreamingLLM, Xiao et al. 2023) keeps the first tokens and the last ones. ``HeavyHitters`` (H2O, Zhang
et al. 2023) keeps the tokens that got most weight so far, and the last ones, for each head; ``LastWeights`` (TOVA, Oren
et al. 2024) those that the last query gave most. These decide after every token; ``ObservedByLast`` (SnapKV, Li et al.
2024) once in a while, by the queries of a window. How a prompt is cut makes no difference to any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.cache.facts import on_host
from vantage.errors import BadInput
from vantage.spec.masks import Mask, Prefix, SameSegment, Window
from vantage.spec.positions import Known, Positions
from vantage.spec.ties import without_last_bits

IntOrTensor = TypeVar("IntOrTensor", int, Tensor)


@final
@dataclass(frozen=True, eq=False)
class Entries:
    """What rows hold, one column for each place, in any arrangement, (R, S)."""

    order: Tensor  # -1 where there is nothing
    segment: Tensor | None
    scores: Tensor | None  # what the policy made of the weights that each has got
    next: Tensor  # (R, 1): where the row goes on

    @property
    def rank(self) -> Tensor:
        """The rank of each in its document."""
        return self.order if self.segment is None else self.order - self.segment

    @property
    def own(self) -> Tensor:
        """Those of the row's last document."""
        filled = self.order >= 0
        if self.segment is None:
            return filled
        newest = torch.where(filled, self.segment, -1).amax(1, keepdim=True)
        return filled & (self.segment == newest)


class Policy(Protocol):
    """A frozen dataclass of numbers, which a saved cache keeps."""

    kind: ClassVar[str]
    observes: ClassVar[bool]  # wants to see the weights
    because: ClassVar[str]  # why entries go

    @property
    def mask(self) -> Mask | None:
        """What a query does not see though it is still held."""
        ...

    @property
    def by_place(self) -> bool:
        """Whether tokens are numbered by their place among those that a query sees."""
        ...

    def kept(self, draft: int) -> int:
        """How many entries a row has at most after a pass."""
        ...

    def low(self, next: IntOrTensor, draft: int) -> IntOrTensor:
        """The order below which entries may be gone."""
        ...

    def stay(self, entries: Entries, draft: int) -> Tensor:
        """(R, S) bool: which entries stay after a pass."""
        ...

    def weighed(self, scores_RS: Tensor, weights_RTS: Tensor, pos: Positions) -> Tensor:
        """The scores after a pass, of the weights that its queries gave."""
        ...

    def widest(self, pos: Positions, most: int) -> int:
        """How many columns of these may make one pass, at least 1, for rows that hold ``most`` entries at most."""
        ...

    def numbers(self, pos: Positions, keys: Positions) -> tuple[Positions, Positions]:
        """The tokens of a pass and what they look at, where transforms and biases are to see them (``by_place``)."""
        ...

    def lost(self, to: int, start: int, low: int, document: int) -> str | None:
        """Why a row that began at ``start`` cannot go back to ``to``; ``None``: it can. Its last document began at
        ``document``, and below ``low`` entries may be gone."""
        ...


@final
@dataclass(frozen=True)
class SinkWindow:
    """The first ``sinks`` tokens of a document and the last ``window``, the query itself included."""

    sinks: int
    window: int
    by_place: bool = False

    kind: ClassVar[str] = "sinks"
    observes: ClassVar[bool] = False
    because: ClassVar[str] = "left the window"

    def __post_init__(self) -> None:
        if self.sinks < 0 or self.window < 1:
            raise BadInput(f"{self.sinks} sinks and a window of {self.window}: give 0 or more, and 1 or more")

    @property
    def mask(self) -> Mask:
        near = Window(self.window)
        return near | (Prefix(self.sinks) & SameSegment()) if self.sinks else near

    def kept(self, draft: int) -> int:
        return self.sinks + self.window - 1 + draft

    def low(self, next: IntOrTensor, draft: int) -> IntOrTensor:
        return next - (self.window - 1 + draft)

    def stay(self, entries: Entries, draft: int) -> Tensor:
        near = entries.order >= self.low(entries.next, draft)
        return (near & (entries.order >= 0)) | (entries.own & (entries.rank < self.sinks))

    def weighed(self, scores_RS: Tensor, weights_RTS: Tensor, pos: Positions) -> Tensor:
        return scores_RS

    def widest(self, pos: Positions, most: int) -> int:
        """Numbers of keys depend on the query, once something lies between the sinks and the window."""
        full = self.sinks + self.window
        highest = pos.known.order
        if not self.by_place or (highest is not None and highest[1] < full):
            return pos.shape[1]
        if pos.known.first is not None:
            return max(1, full - pos.known.first)
        if not on_host(pos.device):
            return 1
        late = (pos.place.rank >= full).any(0).nonzero()
        return max(1, int(late[0])) if len(late) else pos.shape[1]

    def numbers(self, pos: Positions, keys: Positions) -> tuple[Positions, Positions]:
        """The tokens of a pass and what they look at, at their places among what the query sees."""
        full = self.sinks + self.window

        beyond = (pos.place.rank.amax(1, keepdim=True) - (full - 1)).clamp_min(0)

        def numbered(where: Positions) -> Positions:
            at = where.place.rank
            near = (at - beyond).clamp_min(0)  # what lies before the window is not seen, wherever it stands
            number = torch.where(where.filled, torch.where(at < self.sinks, at, near), where.order)
            known = Known(None, where.known.order, (0, full - 1), where.known.counts, where.known.empty, False)
            return Positions(number, where.order, where.segment, known, pos.length)

        return numbered(pos), numbered(keys)

    def lost(self, to: int, start: int, low: int, document: int) -> str | None:
        # at ``document`` itself the one before it may go on, whose sinks are gone
        whole = low <= start or (to > document and (low <= document + self.sinks or self.low(to, 0) >= low))
        return None if whole else "what it would see there is gone. Make the cache with a larger draft"


class ByWeight(ABC):
    """What policies share that go by the weights of the queries so far."""

    observes: ClassVar[bool] = True
    because: ClassVar[str] = "got less weight than others"

    @property
    def mask(self) -> Mask | None:
        return None

    @property
    def by_place(self) -> bool:
        return False

    @property
    @abstractmethod
    def limit(self) -> int:
        """How many entries of a document there may be while a pass runs."""

    @abstractmethod
    def low(self, next: IntOrTensor, draft: int) -> IntOrTensor: ...

    def widest(self, pos: Positions, most: int) -> int:
        """As many as fit. What is decided after them the next ones must see."""
        return max(1, min(pos.shape[1], self.limit - most))

    def numbers(self, pos: Positions, keys: Positions) -> tuple[Positions, Positions]:
        return pos, keys

    def lost(self, to: int, start: int, low: int, document: int) -> str | None:
        return "later queries have had a say in what is kept. Compute the row again"

    def candidates(self, entries: Entries) -> Tensor:
        """Those of the last document that may go: none of the last ones."""
        return entries.own & (entries.order < self.low(entries.next, 0))


@final
@dataclass(frozen=True)
class HeavyHitters(ByWeight):
    """The ``heavy`` entries that got most weight so far, and the last ``recent``. Each token decides."""

    heavy: int
    recent: int

    kind: ClassVar[str] = "heavy hitters"

    def __post_init__(self) -> None:
        if self.heavy < 0 or self.recent < 1:
            raise BadInput(f"{self.heavy} heavy and {self.recent} recent tokens: give 0 or more, and 1 or more")

    @property
    def limit(self) -> int:
        return self.heavy + self.recent

    def kept(self, draft: int) -> int:
        return self.limit

    def low(self, next: IntOrTensor, draft: int) -> IntOrTensor:
        return next - self.recent

    def stay(self, entries: Entries, draft: int) -> Tensor:
        """Of a document one entry too many goes: the lightest before the last ones, of equals the oldest."""
        return _without_the_lightest(entries, self.candidates(entries), self.limit)

    def weighed(self, scores_RS: Tensor, weights_RTS: Tensor, pos: Positions) -> Tensor:
        return scores_RS + weights_RTS.sum(1)


@final
@dataclass(frozen=True)
class LastWeights(ByWeight):
    """The last query and the ``size`` - 1 entries that it gave most weight. Each token decides."""

    size: int

    kind: ClassVar[str] = "last weights"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise BadInput(f"a size of {self.size}: give 1 token or more")

    @property
    def limit(self) -> int:
        return self.size

    def kept(self, draft: int) -> int:
        return self.size

    def low(self, next: IntOrTensor, draft: int) -> IntOrTensor:
        return next - 1

    def stay(self, entries: Entries, draft: int) -> Tensor:
        """Of a document one entry too many goes: the lightest but for the query itself, of equals the oldest."""
        return _without_the_lightest(entries, self.candidates(entries), self.size)

    def weighed(self, scores_RS: Tensor, weights_RTS: Tensor, pos: Positions) -> Tensor:
        columns = torch.arange(pos.shape[1], device=pos.device)
        last = torch.where(pos.filled, columns, -1).amax(1)
        got = weights_RTS.gather(1, last.clamp_min(0)[:, None, None].expand(-1, 1, weights_RTS.shape[2]))[:, 0]
        return torch.where((last >= 0)[:, None], got, scores_RS)


@final
@dataclass(frozen=True)
class ObservedByLast(ByWeight):
    """Of ``size`` + ``window`` entries ``size`` stay: the last ``window``, and those that the queries of these gave
    most weight, averaged over ``pool`` neighbours. Then ``window`` more tokens come before it decides again."""

    size: int
    window: int
    pool: int

    kind: ClassVar[str] = "observed by the last"

    def __post_init__(self) -> None:
        if not 1 <= self.window < self.size:
            raise BadInput(f"a window of {self.window} in a size of {self.size}: give 1 or more, and more than that")
        if self.pool < 1 or self.pool % 2 == 0:
            raise BadInput(f"pool={self.pool}: give an odd number of neighbours, the entry itself included")

    @property
    def limit(self) -> int:
        return self.size + self.window

    def kept(self, draft: int) -> int:
        return self.limit - 1

    def low(self, next: IntOrTensor, draft: int) -> IntOrTensor:
        return next - self.window

    def stay(self, entries: Entries, draft: int) -> Tensor:
        """Of equals the oldest stays. Sums that differ by a rounding are equal: with sparse weights many are whole."""
        assert entries.scores is not None
        own, may_go = entries.own, self.candidates(entries)
        oldest = torch.where(own, entries.order, torch.iinfo(entries.order.dtype).max).argsort(dim=1)
        scores = torch.where(may_go, entries.scores, 0).gather(1, oldest)
        pooled = without_last_bits(F.avg_pool1d(scores[:, None], self.pool, 1, self.pool // 2)[:, 0])
        pooled = pooled.masked_fill(~may_go.gather(1, oldest), float("-inf"))
        heaviest = pooled.argsort(dim=1, descending=True, stable=True)[:, : self.size - self.window]
        heavy = torch.zeros_like(own).scatter(1, oldest.gather(1, heaviest), value=True)
        full = own.sum(1, keepdim=True) >= self.limit
        return own & torch.where(full, heavy | ~may_go, own)

    def weighed(self, scores_RS: Tensor, weights_RTS: Tensor, pos: Positions) -> Tensor:
        """What the last ``window`` queries before a decision give; what was given before the last one is forgotten."""
        rank = pos.place.rank
        counts = pos.filled & (rank >= self.size)
        begins = (counts & ((rank - self.size) % self.window == 0)).any(1, keepdim=True)
        return torch.where(begins, 0, scores_RS) + (weights_RTS * counts[..., None]).sum(1)


def _without_the_lightest(entries: Entries, candidates: Tensor, size: int) -> Tensor:
    """Those of the last document; where they are more than ``size``, the candidate of the lowest score is gone."""
    assert entries.scores is not None
    own = entries.own
    full = own.sum(1, keepdim=True) > size
    scores = without_last_bits(entries.scores).masked_fill(~candidates, float("inf"))
    lightest = candidates & (scores == scores.amin(1, keepdim=True))
    oldest = torch.where(lightest, entries.order, torch.iinfo(entries.order.dtype).max).argmin(1, keepdim=True)
    goes = torch.zeros_like(own).scatter(1, oldest, value=True)
    return own & ~(goes & full)


POLICIES: dict[str, type[Any]] = {
    policy.kind: policy for policy in (SinkWindow, HeavyHitters, LastWeights, ObservedByLast)
}
