"""Whether a model is still the one that was lowered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, is_not
from typing import Any

from torch import Tensor

_version = attrgetter("_version")


class ModelWatch:
    """Which modules, parameters and buffers a model holds, where its weights lie and who hooks into it.

    Asked at each step, which may take a few milliseconds or less: so there is no loop in Python, and as little memory
    as can be is looked at, since after a step all of it must come from far away. ``tensors``: those that a program
    reads where they lie; ``learned``: those of which it keeps what was made of them (torch counts changes in place, but
    not those by ``.data``).
    """

    def __init__(self, model: Any, tensors: Sequence[Tensor], learned: Sequence[Tensor] = ()):
        lowered = [module for part in (model.blocks, model.norm, model.head) for module in part.modules()]
        children = [module._modules for module in (model, *lowered) if module._modules]
        held = [part for module in lowered for part in (module._parameters, module._buffers) if part]
        self._holders: list[dict[str, Any]] = [*children, *held]
        self._held = self._now()
        self._hooks = [
            hooks
            for child in model.modules()
            if child is not model
            for hooks in (child._forward_hooks, child._forward_pre_hooks)
        ]
        # what moves is memory: of the many tensors that share a piece of it, one is asked
        self._tensors = [*{tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values()]
        self._addresses = [*map(Tensor.data_ptr, self._tensors)]
        self._learned = [tensor for tensor in dict.fromkeys(learned) if not tensor.is_inference()]
        self._versions = [*map(_version, self._learned)]

    def changed(self) -> bool:
        """Whether a weight has moved, one that numbers were made of has changed, or a module was exchanged."""
        if [*map(Tensor.data_ptr, self._tensors)] != self._addresses:
            return True
        if [*map(_version, self._learned)] != self._versions:
            return True
        now = self._now()
        return len(now) != len(self._held) or any(map(is_not, now, self._held))

    def hooked(self) -> bool:
        """Whether somebody's hook waits for a module to run."""
        return any(self._hooks)

    def _now(self) -> list[Any]:
        return [*chain.from_iterable(map(dict.values, self._holders))]
