"""The weights that ``build`` draws, one parameter at a time: for processes that each keep a share of them.

Parameters are drawn in constructors, one after the other, from one stream of random numbers. So whoever wants the
numbers of one process must run the constructors of the whole model. What can be avoided is to hold all of it: a
parameter is handed over, and its memory given back, as soon as no constructor uses it any more. Which use is the last
is known from constructing the same model without memory before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vantage.errors import Refused
from vantage.model.transformer import Model
from vantage.spec.model import ModelSpec

Take = Callable[[str, Tensor], None]


def draw_weights(spec: ModelSpec, seed: int, take: Take) -> None:
    """Call ``take(name, weight)`` for each parameter that ``build(spec, seed=seed)`` has, with the same bits.

    The weight is freed when ``take`` returns, so what is kept of it must be a copy. At most one parameter is held at a
    time, or as many as one constructor still works on.
    """
    uses = _planned_uses(spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawing = _Drawing(uses, take)
        with _registering(drawing.register), drawing:
            model = Model(spec)
    for name, parameter in model.named_parameters():
        if name not in drawing.taken:
            take(name, parameter.detach())


@dataclass(frozen=True)
class _Uses:
    """Of one parameter: how often a constructor uses it after its registration, and what becomes of it then."""

    count: int
    name: str | None  # in the finished model; None: it is not there (a head that is tied after it was drawn)
    shared: bool  # several parameters of the finished model are in its memory: they are handed over in the end


def _planned_uses(spec: ModelSpec) -> list[_Uses]:
    """The uses of every parameter in the order of registration, from a model without memory."""
    counting = _Counting()
    with torch.device("meta"), _registering(counting.register), counting:
        model = Model(spec)
    finished = list(model.named_parameters())
    holders = Counter(_storage(p) for _, p in finished)
    names = {_storage(p): name for name, p in finished}
    storages = map(_storage, counting.parameters)
    return [_Uses(n, names.get(s), holders[s] > 1) for s, n in zip(storages, counting.counts, strict=True)]


class _Counting(TorchDispatchMode):
    """Counts the operations on each parameter after its registration, in a model without memory."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: list[Tensor] = []  # held, so that no other gets the address of one that is gone
        self.counts: list[int] = []
        self._numbers: dict[int, int] = {}

    def register(self, parameter: nn.Parameter) -> None:
        if _storage(parameter) not in self._numbers:
            self._numbers[_storage(parameter)] = len(self.parameters)
            self.parameters.append(parameter.detach())
            self.counts.append(0)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for storage in _used(func, args, kwargs) & self._numbers.keys():
            self.counts[self._numbers[storage]] += 1
        draws_in_place = torch.Tag.nondeterministic_seeded in func.tags and func._schema.name.endswith("_")
        if draws_in_place and args[0].is_meta:
            return args[0]  # nothing to draw; torch would import its compiler for that
        return func(*args, **(kwargs or {}))


class _Drawing(TorchDispatchMode):
    """Hands over each parameter after its last use."""

    def __init__(self, uses: Sequence[_Uses], take: Take):
        super().__init__()
        self.taken: set[str] = set()
        self._uses, self._take = uses, take
        self._left: list[int] = []
        self._held: list[Tensor] = []  # without memory, once handed over: no other gets its address
        self._numbers: dict[int, int] = {}
        self._handing = False

    def register(self, parameter: nn.Parameter) -> None:
        if _storage(parameter) in self._numbers:
            return
        number = len(self._left)
        if number == len(self._uses):
            raise _not_the_same()
        self._numbers[_storage(parameter)] = number
        self._left.append(self._uses[number].count)
        self._held.append(parameter.detach())
        if not self._left[number]:
            self._hand_over(number)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._handing:
            return func(*args, **(kwargs or {}))
        numbers = [self._numbers[storage] for storage in _used(func, args, kwargs) & self._numbers.keys()]
        for number in numbers:
            self._left[number] -= 1
            if self._left[number] < 0:
                raise _not_the_same()
        out = func(*args, **(kwargs or {}))
        for number in numbers:
            if not self._left[number]:
                self._hand_over(number)
        return out

    def _hand_over(self, number: int) -> None:
        uses, parameter = self._uses[number], self._held[number]
        if uses.shared:
            return
        self._handing = True
        try:
            if uses.name is not None:
                self._take(uses.name, parameter)
                self.taken.add(uses.name)
            parameter.untyped_storage().resize_(0)
        finally:
            self._handing = False


@contextmanager
def _registering(register: Callable[[nn.Parameter], None]) -> Iterator[None]:
    """Inside, ``register`` is told of each parameter that a module of this thread registers."""
    thread = get_ident()

    def told(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if get_ident() == thread:  # the hook is torch's, for all threads
            register(parameter)

    hook = register_module_parameter_registration_hook(told)
    try:
        yield
    finally:
        hook.remove()


def _used(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> set[int]:
    """The memory that an operation reads or writes. A view only names it in another way."""
    return set() if func.is_view else {_storage(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _not_the_same() -> Refused:
    return Refused(
        "a constructor of this model does something else the second time, so that its weights cannot be drawn one by "
        "one: train it without parallel.tensor and parallel.experts"
    )
