"""The cache of one attention layer: a ledger times a store; and the cache that is none."""

from __future__ import annotations

from typing import final

from torch import Tensor

from vantage.cache.ledger import Ledger
from vantage.cache.stores import Store
from vantage.errors import CacheError
from vantage.spec.parts import View
from vantage.spec.positions import Positions


@final
class LayerCache:
    """Keeps keys and values where a ledger says. Cross-attention appends once and then only looks.

    For inference: gradients are refused. One ``Positions`` object is one pass.
    """

    def __init__(self, ledger: Ledger, store: Store):
        self.ledger, self.store = ledger, store

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor) -> View:
        """Take in new keys and values; return all there is to look at."""
        rows, width = pos.shape
        store = self.store
        store.check(rows, width, k_BGTd, v_BGTe)
        step = self.ledger.place(pos)
        store.write(step, k_BGTd, v_BGTe)
        k, v = store.read(step)
        return View(k, v, step.view_pos)

    def view(self) -> View:
        """Look without appending."""
        step = self.ledger.look()
        k, v = self.store.read(step)
        return View(k, v, step.view_pos)

    @property
    def holding(self) -> bool:
        """Whether there is anything to look at."""
        return self.ledger.holding

    @property
    def bytes(self) -> int:
        return self.store.bytes


@final
class NoCache:
    """Keeps nothing: what is appended is what there is to see. For training and whole passes."""

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor) -> View:
        return View(k_BGTd, v_BGTe, pos)

    def view(self) -> View:
        raise CacheError("nothing is cached here: append first, or use a cache (model.new_cache)")
