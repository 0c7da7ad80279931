"""What a pass has to work on, for those who count its operations: attention modules and position encodings.

Operations of matrix products are counted, two for a multiply and an add.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import nn

from vantage.spec.parts import Shape


class PassSize(NamedTuple):
    """``queries`` new tokens in each of ``batch`` rows, looking at ``keys`` (the new ones included)."""

    batch: int
    queries: int
    keys: int
    source: int = 0  # tokens an encoder-decoder reads
    fresh: bool = True  # the source is read in this pass

    @property
    def tokens(self) -> int:
        return self.batch * self.queries


@dataclass(frozen=True)
class AttentionWork:
    """One attention in one pass."""

    shape: Shape
    size: PassSize
    keys: int  # that its kernel is given
    score_width: int  # in which queries and keys are multiplied: a head's, or MLA's latent and rotary key

    @property
    def rows(self) -> int:
        """Queries of all heads."""
        return self.size.batch * self.shape.heads * self.size.queries

    @property
    def pairs(self) -> int:
        """Queries of all heads, each with every key."""
        return self.rows * self.keys

    def core(self, value_dim: int) -> dict[str, int]:
        """What every attention multiplies: queries with keys, and weights with values."""
        return {"scores": 2 * self.pairs * self.score_width, "weighted sum": 2 * self.pairs * value_dim}


@runtime_checkable
class CountsOutput(Protocol):
    """What stands between a kernel and the output map, and multiplies matrices."""

    def operations(self, tokens: int) -> int: ...


def output_operations(transforms: Iterable[nn.Module], tokens: int) -> int:
    return sum(transform.operations(tokens) for transform in transforms if isinstance(transform, CountsOutput))


def linear_operations(linear: nn.Module, tokens: int) -> int:
    """2 · inputs · outputs for each token; none where a map is left out (an identity)."""
    if isinstance(linear, nn.Identity):
        return 0
    assert isinstance(linear, nn.Linear)
    return 2 * linear.in_features * linear.out_features * tokens


@runtime_checkable
class UsesPartly(Protocol):
    """A module of which a token does not use everything (experts)."""

    def operations(self, tokens: int) -> int: ...

    def weights_read(self, tokens: int) -> int:
        """How many weights so many tokens read at most."""
        ...


def module_operations(module: nn.Module, tokens: int) -> int:
    """Those of a feed-forward layer: of all its linear maps, unless it says otherwise."""
    if isinstance(module, UsesPartly):
        return module.operations(tokens)
    return sum(linear_operations(m, tokens) for m in module.modules() if isinstance(m, nn.Linear))


def weights_read(module: nn.Module, tokens: int) -> int:
    return module.weights_read(tokens) if isinstance(module, UsesPartly) else weights_of(module)


def weights_of(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
