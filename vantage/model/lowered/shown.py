"""Attention weights that whole steps hand out on the way, for whoever watches a model write."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from ctypes import c_void_p
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vantage.kernels.native import ProgramCall
from vantage.model.lowered.program import LoweredAttention
from vantage.spec.native import LANES


class WatchedWeights(NamedTuple):
    """What the last query of each row looked at in one layer, by the weights that the step used.

    ``first``: the order of each row's key 0. Rows that hold fewer tokens than others end with zeros.
    """

    layer: int
    weights: Tensor  # (B, H, S); good until the next step
    first: tuple[int, ...]


class WeightsWatcher(Protocol):
    """Who wants the weights of the last query of every pass, however it runs."""

    layers: frozenset[int]  # whose weights are wanted

    def see(self, shown: WatchedWeights) -> None:
        """A whole step has shown a layer's weights."""
        ...

    def modules(self, why: str) -> AbstractContextManager[None]:
        """Around a pass that no whole step takes: watch the modules instead. ``why``: what is in the way of one."""
        ...


class ShownWeights:
    """Memory for the weights of the watched layers, kept from step to step: new memory costs a fault for every page."""

    def __init__(self, attentions: Sequence[LoweredAttention]):
        self._heads = [attention.shape.heads for attention in attentions]
        self._memory = torch.empty(0)
        self._addresses = (c_void_p * len(attentions))()
        self._parts: list[tuple[int, Tensor]] = []
        self._keys: tuple[int, ...] = ()

    def request(self, call: ProgramCall, layers: frozenset[int], keys: tuple[int, ...]) -> None:
        """Have these layers' weights written. ``keys``: how many each row has, the new ones included."""
        room, rows = -(-max(keys) // LANES) * LANES, len(keys)
        wanted = sorted(layers)
        size = sum(self._heads[layer] for layer in wanted) * rows * room
        if size > len(self._memory):
            self._memory = torch.empty(size + size // 4)
        parts = self._memory[:size].split([self._heads[layer] * rows * room for layer in wanted])
        shaped = [part.view(rows, -1, room)[..., : max(keys)] for part in parts]
        self._parts, self._keys = list(zip(wanted, shaped, strict=True)), keys
        for layer in range(len(self._addresses)):
            self._addresses[layer] = None
        for layer, part in self._parts:
            self._addresses[layer] = part.data_ptr()
        call.shown, call.shown_keys = ctypes.addressof(self._addresses), room

    def give(self, watcher: WeightsWatcher, last_order: Sequence[int]) -> None:
        """After the step: hand them out. ``last_order``: of each row's last token."""
        first = tuple(order - (keys - 1) for order, keys in zip(last_order, self._keys, strict=True))
        for layer, weights in self._parts:
            for row, keys in enumerate(self._keys):
                if keys < weights.shape[-1]:
                    weights[row, :, keys:] = 0.0
            watcher.see(WatchedWeights(layer, weights, first))
