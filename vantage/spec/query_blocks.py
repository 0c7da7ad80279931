"""Some queries at a time, so that nothing is formed for all pairs of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vantage.spec.normalisers import MadeForPass
from vantage.spec.parts import Dense, Need, Pointwise
from vantage.spec.positions import Place, Positions

CELLS = {"cpu": 2**22}  # numbers formed at once, in all tensors of a block together
MANY_CELLS = 2**26  # elsewhere: enough to keep a GPU busy
MIN_QUERIES = 8  # queries of a block, however many keys they have


def query_blocks(queries: int, numbers: int, device: torch.device, each: int | None = None) -> list[slice]:
    """Stretches of queries, ``each`` as long or as long as the cells allow where one query forms so many numbers."""
    if torch.compiler.is_compiling() or _only_shapes():  # a compiler would write the blocks out one by one
        return [slice(0, queries)]
    if each is None:
        most = max(MIN_QUERIES, CELLS.get(device.type, MANY_CELLS) // max(1, numbers))
        each = max(1, -(-queries // max(1, -(-queries // most))))  # all of about the same length
    return [slice(start, min(start + each, queries)) for start in range(0, queries, each)]


def _only_shapes() -> bool:
    """Whether tensors have no numbers (``vantage inspect kernels``): nothing is large then."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


@dataclass(frozen=True, eq=False)
class QueryBlockBias(Pointwise):
    """Another bias, for its queries from ``first`` on and these of its keys."""

    inner: Pointwise
    first: int
    keys: slice | Tensor | None = None  # ``None``: all

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        if k.column is not None and self.keys is not None:
            column = self.keys[k.column] if isinstance(self.keys, Tensor) else k.column + self.keys.start
            k = k._replace(column=column)
        return self.inner(b, h, i + self.first, q, k)

    def key(self) -> Any:
        return (QueryBlockBias, self.inner.key(), self.first, id(self.keys))  # each block has keys of its own


@runtime_checkable
class SeesStretches(Protocol):
    """A bias that hides all keys but a few stretches from queries that stand near each other."""

    def stretches(self, queries: Positions) -> tuple[slice, ...] | None:
        """The columns of all keys that some of them may see; ``None``: nobody knows."""
        ...


def of_queries(need: Need, cut: slice, keys: slice | Tensor, device: torch.device) -> Need:
    """The same need, of some queries and keys."""
    bias, sinks, normalise = need.bias, need.sinks, need.normalise
    if isinstance(bias, Dense):
        bias = Dense(bias.of_queries(cut)[..., keys])
    elif bias is not None:
        bias = QueryBlockBias(bias, cut.start, keys)
    if sinks is not None and sinks.dim() > 1:
        sinks = sinks[:, :, cut]
    if isinstance(normalise, MadeForPass):
        normalise = normalise.of_queries(torch.arange(cut.start, cut.stop, device=device))
    return replace(need, bias=bias, sinks=sinks, normalise=normalise)
