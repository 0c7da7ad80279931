"""What ``vt.check`` asks of a model, whoever made it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vantage.spec.positions import Positions

NewCache = Callable[[int], Any]  # from a number of rows to an empty cache


class NotApplicable(Exception):
    """A row that has nothing to say of this model. The message is the reason."""


@dataclass(frozen=True)
class ModelFacts:
    """What a model says of itself."""

    name: str
    vocab: int
    device: torch.device
    limit: int | None = None  # positions it has
    declares: bool = False  # the length of a context can be declared, so the rule does not change by itself
    windows: tuple[int | None, ...] = ()  # of each layer; (): none is declared
    odd_window: str = ""  # why its masks are no plain windows
    original: int | None = None  # the length past which its RoPE rule changes
    places_apart: bool = False  # masks count tokens, whatever positions the encodings are given
    reads_positions: bool = True  # positions can be given at all
    pad: int | None = None  # the token that stands in padding, where it must be a certain one

    def knowing(self, vocab: int) -> ModelFacts:
        return replace(self, vocab=vocab)

    @property
    def room(self) -> int | None:
        """Positions at which no rule changes; None: any number."""
        limits = (self.limit, None if self.declares else self.original)
        return min((n for n in limits if n is not None), default=None)


class Subject(ABC):
    """A model under test."""

    facts: ModelFacts
    model: Any

    @contextlib.contextmanager
    def replaced(self, model: Any) -> Iterator[None]:
        """Another model in its place for a while."""
        before, self.model = self.model, model
        try:
            yield
        finally:
            self.model = before

    @abstractmethod
    def run(self, tokens: Tensor, positions: Tensor | None, cache: Any = None, *, length: int | None = None) -> Tensor:
        """Logits (B, T, V). Positions (B, T), -1 is padding, ``None`` leaves them to the model.

        ``length`` is the declared length of an uncached pass; only our own models know it.
        """

    @abstractmethod
    def misplaced(self, tokens: Tensor, positions: Tensor, start: int, cache: Any = None) -> Tensor:
        """Encodings are given ``positions``; masks count tokens from ``start``. Needs ``facts.places_apart``."""

    @abstractmethod
    def packings(self) -> tuple[str, ...]:
        """The ways in which its interface marks the documents of a row. Raises ``NotApplicable`` where it has none."""

    @abstractmethod
    def packed(self, tokens: Tensor, where: Positions, way: str) -> Tensor:
        """Documents side by side in each row, marked in this way. Raises ``NotApplicable`` where that is refused."""

    @abstractmethod
    def new_cache(self, batch: int, *, length: int | None = None) -> Any:
        """Raises ``NotApplicable`` where there is none."""

    @abstractmethod
    def crop(self, cache: Any, to: int) -> None:
        """Back to ``to`` tokens. Raises ``NotApplicable`` where it cannot."""

    @abstractmethod
    def fork(self, cache: Any) -> Any: ...

    @abstractmethod
    def doubled(self) -> Subject | None:
        """A copy in float64, where one can be made and is small."""

    @abstractmethod
    def settled(self, start: int) -> bool:
        """Whether no token before ``start`` sees one from ``start`` on."""
