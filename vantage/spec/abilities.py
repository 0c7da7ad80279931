"""What the parts of a position encoding may say of themselves: each ability is one method or value.

A part that lacks one is treated as it comes: it multiplies no matrices, it is called after its class, it has no bands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from vantage.spec.operations import AttentionWork
from vantage.spec.parts import Buildable
from vantage.spec.positions import Positions


@runtime_checkable
class LengthDependent(Protocol):
    """A part whose rule may change with the length of the context (dynamic NTK, LongRoPE)."""

    @property
    def original_length(self) -> int | None:
        """Up to this length the rule stays as it is; ``None``: it never changes."""
        ...


@runtime_checkable
class TurnsWith(Protocol):
    """A score bias that reads what a rotation of the same layer has turned, and must know by how much."""

    @property
    def turns_with(self) -> Buildable: ...

    def turning_with(self, rope: Any) -> Buildable:
        """The same bias for another rotation."""
        ...


@runtime_checkable
class Described(Protocol):
    """A part that says in a few words what it is, for tables."""

    def describe(self) -> str: ...


@runtime_checkable
class Bounded(Protocol):
    """A part that may end at some position (a learned table)."""

    @property
    def max_positions(self) -> int | None:
        """How many positions it has; ``None``: no end."""
        ...


@runtime_checkable
class Divisible(Protocol):
    """The config of an attention or a feed-forward layer whose heads or columns may lie over several processes."""

    def divided(self, ranks: int, width: int) -> Any:
        """What each of so many has of it, in a model of this width: the sum of what they give is what it gives."""
        ...


@runtime_checkable
class Indivisible(Protocol):
    """The config of one that cannot lie over several processes, and knows why."""

    @property
    def indivisible(self) -> str:
        """The reason, as the end of a sentence."""
        ...


@runtime_checkable
class SpreadsExperts(Protocol):
    """The config of a feed-forward layer whose experts may lie whole on several processes."""

    @property
    def count(self) -> int:
        """How many experts there are."""
        ...

    @property
    def chosen(self) -> int:
        """How many of them a token goes to."""
        ...

    def of_experts(self, first: int, count: int) -> Any:
        """What a process has that holds these: its module can ``exchange_by``."""
        ...


@runtime_checkable
class DividesExperts(Protocol):
    """The config of a feed-forward layer with experts, of which a process may have some whole and see all tokens."""

    @property
    def count(self) -> int: ...

    def with_experts(self, first: int, count: int, ranks: int, width: int) -> Any:
        """What one of so many processes has that holds these; all that is no expert is divided as columns are. The sum
        of what the processes give is what the layer gives."""
        ...


class TokenExchange(Protocol):
    """How rows come to the processes that have their experts, and back."""

    def __call__(self, x_MD: Tensor, expert_M: Tensor, experts: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """What the expert of each row makes of it; ``experts`` are those that are here."""
        ...


@runtime_checkable
class ExchangesTokens(Protocol):
    """The module of such a layer."""

    @property
    def numbered(self) -> Any:
        """The experts that are here, a module by their numbers; ``None``: all are."""
        ...

    def exchange_by(self, exchange: TokenExchange) -> None: ...


@runtime_checkable
class DividesByHead(Protocol):
    """A part that treats heads differently though it learns nothing of them (ALiBi's slopes)."""

    def of_heads(self, first: int, count: int, heads: int) -> Any:
        """The part for these of so many heads."""
        ...


@runtime_checkable
class HasExperts(Protocol):
    """A module that sends each token to some of its parts, whose weights the others need not have."""

    def routed_experts(self) -> list[nn.Module]: ...


@runtime_checkable
class MultipliesMatrices(Protocol):
    """The config of a score bias, a value bias or a q/k transform that multiplies matrices."""

    def operations(self, work: AttentionWork) -> int:
        """Two for a multiply and an add, over one attention in one pass."""
        ...


@final
@dataclass(frozen=True)
class Effect:
    """What a q/k transform does to a score, for those who take scores apart."""

    name: str
    positional: bool = True  # it changes with the position
    linear: bool = False  # of a sum of queries it makes the sum of what it makes of each
    own_term: bool = False  # it adds something of its own to the queries, whatever the tokens are


@runtime_checkable
class HasEffect(Protocol):
    """The config of a q/k transform."""

    @property
    def effect(self) -> Effect: ...


def effect_of(config: object) -> Effect:
    return config.effect if isinstance(config, HasEffect) else Effect(type(config).__name__)


@final
@dataclass(frozen=True, eq=False)
class Bands:
    """The pairs of dimensions that a rotation turns."""

    frequency: Tensor  # (n,) radians a position
    of: Tensor  # (d,): the band of each dimension, -1 where nothing turns

    @property
    def wavelength(self) -> Tensor:
        """Positions in a whole turn; inf for a band that stands still."""
        return 2 * torch.pi / self.frequency


@runtime_checkable
class HasBands(Protocol):
    """A q/k transform that turns pairs of dimensions."""

    def bands(self, pos: Positions) -> Bands:
        """Of the dimensions that it is handed, in a context of these positions."""
        ...


# ---- what there is to draw


@runtime_checkable
class HasBuckets(Protocol):
    """A score bias with a number for each bucket of distances."""

    @property
    def bidirectional(self) -> bool: ...

    def bucket(self, distance: Tensor) -> Tensor:
        """Of each distance, key position less query position."""
        ...


@runtime_checkable
class CountsKeys(Protocol):
    """A score bias whose positions are counts over the keys, so that every key matters to every other."""

    def counts(self, q: Tensor, k: Tensor, q_pos: Positions, k_pos: Positions, scale: float) -> Tensor:
        """(B, H, T, S): how far away each query counts each key to be."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A q/k transform that goes by how many tokens a query sees: by the order that masks read, not by positions."""

    counts_tokens: bool


@runtime_checkable
class TurnsBack(Protocol):
    """A q/k transform that can be taken back: a rotation."""

    def back(self, x_BHTd: Tensor, pos: Positions) -> Tensor:
        """What turns the other way: of values that were turned by where they stand, the distance is left."""
        ...
