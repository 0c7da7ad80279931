"""What an attention module says of itself, so that nobody has to know which kinds there are.

``Attention`` is all that a module needs to be found in a model and watched while it runs: its weights can be captured,
its heads measured, its parameters and its cache counted. The other protocols are abilities, one method or two each.
Whoever needs one that a module does not have says so by the module's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from vantage.errors import Refused
from vantage.spec.operations import AttentionWork, PassSize
from vantage.spec.parts import ScoreBias, Shape, ValueBias
from vantage.spec.transforms import QKTransform

Pieces = tuple[tuple[str, int], ...]  # the maps in one weight: a name and a number of rows each


@runtime_checkable
class Attention(Protocol):
    """A module whose ``forward(x, ctx)`` attends through ``ctx.attend``."""

    shape: Shape
    crosses: bool  # its keys and values are those of an encoder's output


@runtime_checkable
class HasProjections(Protocol):
    """Several of its maps lie side by side in one weight. Without it, every linear child is one map."""

    def projections(self) -> dict[str, Pieces]:
        """By the name of the child."""
        ...


class ActivationColumns(NamedTuple):
    """Where one of a module's activations lies: some columns of what a child returns, or of what it is given."""

    child: str
    first: int
    width: int
    heads: int  # that these columns are; 0: they are not heads
    given: bool = False  # to the child, as its input


@runtime_checkable
class HasActivations(Protocol):
    """Needed to read and replace what is inside it by name (``vt.trace``): queries, keys, heads, neurons."""

    def activations(self) -> dict[str, ActivationColumns]: ...


class PositionParts(NamedTuple):
    """The modules that act on position inside an attention."""

    qk: Sequence[QKTransform]
    bias: ScoreBias
    value_bias: ValueBias | None


@runtime_checkable
class HasPositionParts(Protocol):
    """Needed to exchange the encoding of a model (``vt.swap``) and to split scores into content and position."""

    def position_parts(self) -> PositionParts: ...


class QueriesAndKeys(NamedTuple):
    """Projected, before anything knows a position. Transforms act on the last ``shape.rotary_dim`` of a head."""

    q: Tensor  # (B, H, T, d)
    k: Tensor  # (B, G or H, S, d)


@runtime_checkable
class HasQueriesAndKeys(Protocol):
    """Needed to split scores into content and position."""

    biased: bool  # both are a linear map of x plus a bias, so that what the bias says can be told apart

    def queries_and_keys(self, x_BTD: Tensor) -> QueriesAndKeys: ...


@runtime_checkable
class SplitsScores(HasQueriesAndKeys, HasPositionParts, Protocol):
    """Both of what is needed to split scores into content and position."""


def position_parts(module: object) -> PositionParts | None:
    """What acts for position inside an attention, where it says so."""
    return module.position_parts() if isinstance(module, HasPositionParts) else None


@runtime_checkable
class CountsOperations(Protocol):
    """Needed to predict what a pass costs."""

    def score_width(self, queries: int, keys: int) -> int:
        """In which so many queries are multiplied with so many keys."""
        ...

    def operations(self, work: AttentionWork) -> dict[str, int]:
        """By part: "projections", "scores", "weighted sum", "output". What position multiplies is counted apart."""
        ...


@runtime_checkable
class MakesKeys(Protocol):
    """An attention whose kernel is given other keys than those that are kept."""

    def keys_given(self, queries: int, keys: int) -> int:
        """How many, to so many queries where so many are kept."""
        ...


@runtime_checkable
class TokenMixer(Protocol):
    """A module in the place of an attention that has no scores: a convolution, a delta rule."""

    def mixing_operations(self, size: PassSize) -> dict[str, int]:
        """By part, as in ``CountsOperations``."""
        ...


@runtime_checkable
class DescribesHeads(Protocol):
    """An attention's description that says in a few words what it is, for tables."""

    def describe(self, width: int) -> tuple[str, ...]:
        """Its heads, and then what is special about its scores."""
        ...


def ability(module: Any, protocol: type, purpose: str) -> Any:
    """The module, if it has this ability; otherwise a refusal that names the module and what it would need."""
    if isinstance(module, protocol):
        return module
    members = sorted(name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_"))
    raise Refused(
        f"{type(module).__name__} cannot {purpose}: it would need {' and '.join(members)} "
        f"(vantage.spec.attention.{protocol.__name__})"
    )


def attentions(module: nn.Module) -> list[Any]:
    """Every attention inside a module, in its order. What torch.compile wraps around one answers like it: left out."""
    return [
        inner
        for inner in module.modules()
        if isinstance(inner, Attention) and not any(isinstance(child, Attention) for child in inner.children())
    ]
