"""The cache of one attention layer: a ledger times a store; and the cache that is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from vantage.cache.codecs import Codec
from vantage.cache.ledger import Ledger
from vantage.cache.running import summed
from vantage.cache.states import NoStates, StateRows
from vantage.cache.stores import Store
from vantage.errors import CacheError
from vantage.spec.kept import KeptStream, StateShape
from vantage.spec.parts import View
from vantage.spec.positions import Positions


@final
class LayerCache:
    """Keeps keys and values where a ledger says. Cross-attention appends once and then only looks.

    For inference: gradients are refused. One ``Positions`` object is one pass.
    """

    def __init__(self, ledger: Ledger, store: Store, states: StateRows | None = None):
        self.ledger, self.store, self.late = ledger, store, ledger.late
        self.own_states = states

    @property
    def states(self) -> StateRows:
        assert self.own_states is not None, "a layer asks for states that its description does not name"
        return self.own_states

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor, *streams: Tensor) -> View:
        """Take in new keys and values; return all there is to look at."""
        rows, width = pos.shape
        store = self.store
        store.check(rows, width, k_BGTd, v_BGTe, streams)
        step = self.ledger.place(pos)
        own = store.write(step, k_BGTd, v_BGTe, streams, pos)
        k, v, kept = store.read(step)
        return View(k, v, step.view_pos, kept, own, step.selected)

    def view(self) -> View:
        """Look without appending."""
        step = self.ledger.look()
        k, v, kept = self.store.read(step)
        return View(k, v, step.view_pos, kept)

    @property
    def holding(self) -> bool:
        """Whether there is anything to look at."""
        return self.ledger.holding

    @property
    def bytes(self) -> int:
        return self.store.bytes + (0 if self.own_states is None else self.own_states.bytes)

    def fork(self, ledger: Ledger) -> LayerCache:
        """The same for a forked ledger."""
        states = None if self.own_states is None else self.own_states.fork()
        return LayerCache(ledger, self.store.fork(ledger), states)

    def fresh(self, ledger: Ledger) -> LayerCache:
        """An empty one for a fresh ledger."""
        states = None if self.own_states is None else self.own_states.fresh(ledger.batch)
        return LayerCache(ledger, self.store.fresh(ledger), states)

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i becomes what row rows[i] was."""
        self.store.reorder(rows, self.ledger.used)
        if self.own_states is not None:
            self.own_states.reorder(rows)


@final
class NoCache:
    """Keeps nothing: what is appended is what there is to see. For training and whole passes."""

    late = False

    def __init__(
        self, streams: tuple[KeptStream, ...] = (), states: tuple[StateShape, ...] = (), codec: Codec | None = None
    ):
        self._streams, self._codec = streams, codec  # what a cache would round is rounded here as well
        self.states = NoStates(states)

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor, *streams: Tensor) -> View:
        if self._codec is not None and not (k_BGTd.requires_grad and torch.is_grad_enabled()):
            k_BGTd, v_BGTe = self._codec.decode(self._codec.encode(k_BGTd, v_BGTe))
        if not self._streams:
            return View(k_BGTd, v_BGTe, pos)
        own = tuple(_kept(x, s, pos) for x, s in zip(streams, self._streams, strict=True))
        return View(k_BGTd, v_BGTe, pos, own, own)

    def view(self) -> View:
        raise CacheError("nothing is cached here: append first, or use a cache (model.new_cache)")


def _kept(x_BGTw: Tensor, stream: KeptStream, pos: Positions) -> Tensor:
    x = x_BGTw.to(stream.dtype(x_BGTw.dtype))
    return summed(x, pos) if stream.running else x
