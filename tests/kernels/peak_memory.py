"""What a computation holds at once, counted by the tensors that torch's operators return."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """``peak``: the most bytes of new tensors that lived together; ``largest``: numbers of the largest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self.largest = 0, 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._held = 0  # bytes of what lives, and of what has gone since they were last added up
        self._given: dict[int, Any] = {}  # storages of what was there before: kept, so that no new one gets their place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in self._live:
                self._given[x.untyped_storage()._cdata] = x.untyped_storage()
        out = func(*args, **(kwargs or {}))
        new = [x for x in tree_leaves(out) if isinstance(x, Tensor) and self._is_new(x)]
        for x in new:
            storage = x.untyped_storage()
            self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            self._held += storage.nbytes()
            self.largest = max(self.largest, storage.nbytes() // x.element_size())
        if self._held > self.peak:  # only then is it worth while to see what is gone
            self._live = {key: (ref, _nbytes(ref)) for key, (ref, _) in self._live.items() if not ref.expired()}
            self._held = sum(size for _, size in self._live.values())
            self.peak = max(self.peak, self._held)
        return out

    def _is_new(self, x: Tensor) -> bool:
        """An address that was freed may come again."""
        if x.is_meta:  # it has a size, and no memory
            return False
        key = x.untyped_storage()._cdata
        known = self._live.get(key)
        return key not in self._given and (known is None or known[0].expired())


def _nbytes(ref: StorageWeakRef) -> int:
    """What it holds now: memory may be given back while the tensor stays."""
    storage = torch.UntypedStorage._new_with_weak_ptr(ref.cdata)
    return 0 if storage is None else storage.nbytes()


def growth(run: Any, length: int) -> float:
    """How many times as much is held at twice the length."""
    held = []
    for n in (length, 2 * length):
        with PeakMemory() as memory:
            result = run(n)
        del result
        held.append(memory.peak)
    return held[1] / held[0]
