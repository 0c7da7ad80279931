"""What a process has of a model: some of its experts, and of the rest some heads and columns.

Its weights come one parameter at a time, drawn or read from files, so that no process ever holds the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from vantage.model import Model, draw_weights, empty_model
from vantage.parallel.experts import ExpertParallel
from vantage.parallel.tensor import TensorParallel, put_parameters, with_companions
from vantage.spec.model import ModelSpec


class Divided(Protocol):
    """A model of ``spec`` that processes have in shares. ``own`` is the spec of what this one has."""

    spec: ModelSpec
    own: ModelSpec

    def has(self, name: str) -> bool:
        """Whether this process has anything of a parameter."""
        ...

    def take(self, name: str, whole: Tensor) -> Tensor:
        """This process's share of a parameter; a view of it where that is possible."""
        ...

    def slices(self, name: str) -> tuple[int, list[tuple[int, int]]]:
        """A dimension, and along it for each map of a parameter the first row and how many; none: all of it."""
        ...

    def connect(self, share: Model) -> Model:
        """From now on this share exchanges with those of the other processes what it takes to be the whole model."""
        ...


Divide = Callable[[ModelSpec], Divided]


class ModelShare:
    """A model whose experts lie over the processes of one group, and its heads and columns over those of another."""

    def __init__(
        self, spec: ModelSpec, *, experts: dist.ProcessGroup | None = None, tensor: dist.ProcessGroup | None = None
    ):
        self.spec = spec
        self.experts = None if experts is None else ExpertParallel(spec, experts)
        held = spec if self.experts is None else self.experts.own
        self.tensor = None if tensor is None else TensorParallel(held, tensor)
        self.own = held if self.tensor is None else self.tensor.own
        self._names = {name for name, _ in empty_model(self.own).named_parameters()}

    def has(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str, whole: Tensor) -> Tensor:
        return whole if self.tensor is None or not self.has(name) else self.tensor.take(name, whole)

    def slices(self, name: str) -> tuple[int, list[tuple[int, int]]]:
        return (0, []) if self.tensor is None or not self.has(name) else self.tensor.slices(name)

    def connect(self, share: Model) -> Model:
        if self.tensor is not None:
            self.tensor.connect(share)
        if self.experts is not None:
            self.experts.connect(share)
        return share

    def cut(self, model: Model) -> Model:
        """This process's share of a whole model that every process has alike."""
        share = empty_model(self.own, model.kernel)
        held = ((name, p.detach()) for name, p in model.named_parameters() if self.has(name))
        put_parameters(share, {name: self._copy(name, p) for name, p in held})
        return self.connect(with_companions(share, model))

    def drawn(self, seed: int) -> Model:
        """This process's share of ``build(spec, seed=seed)``, to the bit. Beside it one parameter is held at a time."""
        kept: dict[str, Tensor] = {}

        def keep(name: str, whole: Tensor) -> None:
            if self.has(name):
                kept[name] = self._copy(name, whole)

        draw_weights(self.spec, seed, keep)
        share = empty_model(self.own)
        put_parameters(share, kept)
        return self.connect(share)

    def _copy(self, name: str, whole: Tensor) -> Tensor:
        """This process's share of a parameter, in memory of its own."""
        own = self.take(name, whole)
        return own.clone() if own.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() else own
