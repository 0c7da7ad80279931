"""Replacing activations: what, where, and by which value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.interventions.activations import Activation

Change = Callable[[Tensor], Tensor]
Several = int | Iterable[int] | None
CHOICES = {"row": "rows", "token": "positions", "head": "heads", "key": "keys"}


@final
@dataclass(frozen=True, eq=False)
class Edit:
    """One activation, or that of several layers (``layers.*.heads``), replaced during a forward pass.

    ``value`` is a number, a tensor, or a function of the activation. The rest of the activation is unchanged:
    ``positions`` selects tokens by their order in the row, 0 being the first that the model read, so an edit means the
    same tokens with a cache; ``keys`` selects the attended tokens (scores and weights only); ``heads`` and
    ``rows`` of the batch. A tensor has the activation's dimensions, of which leading ones may be left out; along what
    was chosen it has one entry for each, or one for all. ``add``: the value is added to what is there.
    """

    activation: str
    value: float | Tensor | Change
    heads: Several = None
    positions: Several = None
    keys: Several = None
    rows: Several = None
    add: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.activation, str):
            raise BadInput(f"activation={self.activation!r}: give the name of an activation, as in 'layers.3.heads'")
        if not (callable(self.value) or isinstance(self.value, (int, float, Tensor))):
            raise BadInput(f"value={self.value!r:.80}: give a number, a tensor or a function of the activation")
        for name in CHOICES.values():
            whole_numbers(getattr(self, name), name)

    def check(self, activation: Activation) -> None:
        """Refuse choices that this activation does not have."""
        for dim, name in CHOICES.items():
            if getattr(self, name) is not None and dim not in activation.dims:
                raise BadInput(f"{name}= was given, and {activation.name} has no {name}: {' × '.join(activation.dims)}")
        for head in whole_numbers(self.heads, "heads") or ():
            if head >= activation.heads:
                raise BadInput(f"{activation.name} has no head {head}: there are {activation.heads}")

    def apply(self, value: Tensor, dims: Sequence[str], order_BT: Tensor | None) -> Tensor | None:
        """The activation with this edit; ``None``: nothing of it is chosen in this pass. ``order``: of its tokens."""
        indices = [self._index(dim, value.shape[d], order_BT, value.device) for d, dim in enumerate(dims)]
        shaped = [None if index is None else _along(index, d, len(dims)) for d, index in enumerate(indices)]
        mask = None
        for index in shaped:
            if index is not None:
                mask = index >= 0 if mask is None else mask & (index >= 0)
        if mask is not None and not bool(mask.any()):
            return None
        new = self._new(value, shaped)
        return new.expand_as(value) if mask is None else torch.where(mask, new, value)

    def _index(self, dim: str, size: int, order_BT: Tensor | None, device: torch.device) -> Tensor | None:
        """For each entry of a dimension which of the chosen ones it is, -1: none of them; ``None``: all are meant."""
        some = None if dim not in CHOICES else whole_numbers(getattr(self, CHOICES[dim]), CHOICES[dim])
        if some is None:
            return None
        numbers = order_BT if dim == "token" else torch.arange(size, device=device)
        if numbers is None:
            raise BadInput(
                f"positions= of {self.activation}: which tokens this pass shows is not known; leave them out"
            )
        equal = numbers[..., None] == torch.tensor(some, device=numbers.device)
        return torch.where(equal.any(-1), equal.int().argmax(-1), -1)

    def _new(self, value: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
        """What takes its place, in a shape that can be expanded to the activation's."""
        if isinstance(self.value, Tensor):
            new = self._spread(self.value.to(value), value, indices)
        elif callable(self.value):
            new = self.value(value.clone())
            if not isinstance(new, Tensor) or new.shape != value.shape:
                returned = f"a tensor {tuple(new.shape)}" if isinstance(new, Tensor) else f"a {type(new).__name__}"
                wanted = tuple(value.shape)
                raise BadInput(f"the function for {self.activation} returned {returned}: return a tensor {wanted}")
        else:
            new = value.new_full((), self.value)
        return value + new if self.add else new.to(value.dtype)

    def _spread(self, new: Tensor, value: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
        """A tensor with one entry for each chosen one, with those at their places."""
        wrong = f"the tensor for {self.activation} has shape {tuple(new.shape)}, the activation {tuple(value.shape)}"
        if new.dim() > value.dim():
            raise BadInput(f"{wrong}: it may not have more dimensions")
        new = new.reshape((1,) * (value.dim() - new.dim()) + tuple(new.shape))
        for d, index in enumerate(indices):
            if index is not None and new.shape[d] > 1:
                if int(index.max()) >= new.shape[d]:
                    raise BadInput(f"{wrong}: its dimension {d} is shorter than what was chosen")
                new = torch.take_along_dim(new, index.clamp_min(0), d)
            elif new.shape[d] not in (1, value.shape[d]):
                raise BadInput(f"{wrong}: dimension {d} is {new.shape[d]} long where {value.shape[d]} or 1 is wanted")
        return new


def _along(index: Tensor, d: int, dims: int) -> Tensor:
    """An index of one dimension, for every row of the batch or for all of them, to be broadcast over the others."""
    shape = [1] * dims
    shape[d] = index.shape[-1]
    if index.dim() == 2:
        shape[0] = index.shape[0]
    return index.reshape(shape)


def whole_numbers(numbers: Any, name: str) -> list[int] | None:
    """What was chosen, as a list; ``None``: everything."""
    if numbers is None:
        return None
    if isinstance(numbers, Tensor):
        numbers = numbers.tolist()
    several = [numbers] if isinstance(numbers, int) else list(numbers) if isinstance(numbers, Iterable) else None
    if not several or not all(type(n) is int and n >= 0 for n in several):
        raise BadInput(f"{name}={numbers!r}: give whole numbers from 0 on, at least one, or None for all")
    return several
