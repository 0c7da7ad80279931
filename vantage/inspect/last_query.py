"""Watching what the newest token attends to, pass by pass, at the speed of native steps where they run.

A whole native step hands out the weights that it used. Where a pass runs module by module anyway, the weights are
formed again from what each kernel was given, as a capture forms them. Either way the model computes what it would have
computed without a watcher.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.inspect.sites import KernelCall, Site, observing
from vantage.inspect.tiles import tiles
from vantage.model import Model
from vantage.model.lowered.shown import WatchedWeights


class LastQuery(NamedTuple):
    """The last query of a pass, at one site."""

    site: Site
    weights: Tensor  # (B, H, S), float32 in host memory; good until the next pass
    order: Tensor  # (B, S): of each key; -1 where there is none, and weight 0


@final
class LastQueryWatch:
    """Reports the last query of each pass at these sites, which are self-attentions of the model's own layers.

    ``by_modules``: why the last pass ran module by module; ``None`` where it was a whole native step.
    """

    def __init__(self, model: Model, sites: Sequence[Site], see: Callable[[LastQuery], None]):
        self.layers = frozenset(site.layer for site in sites)
        self.by_modules: str | None = None
        self._model, self._report = model, see
        self._sites = {site.layer: site for site in sites}
        if any(site.kind != "self" for site in sites) or len(self._sites) < len(sites):
            raise Refused("the last query is watched at self-attentions, one in a layer: choose sites of that kind")
        self._orders: dict[tuple[tuple[int, ...], int], Tensor] = {}  # of the present pass: layers share them

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Inside, passes are seen."""
        steps = self._model.whole_steps
        if steps.watcher is not None:
            raise Refused("somebody watches this model already: one at a time")
        steps.watcher = self
        try:
            yield
        finally:
            steps.watcher = None

    def see(self, shown: WatchedWeights) -> None:
        """Of a whole step."""
        self.by_modules = None
        keys = shown.first, shown.weights.shape[-1]
        if keys not in self._orders:
            order = torch.arange(keys[1]) + torch.tensor(shown.first)[:, None]
            self._orders = {keys: order}
        self._report(LastQuery(self._sites[shown.layer], shown.weights, self._orders[keys]))

    def modules(self, why: str) -> contextlib.AbstractContextManager[None]:
        """Around a pass that is no whole step."""
        self.by_modules = why
        return observing([*self._sites.values()], self._see_call)

    def _see_call(self, call: KernelCall) -> None:
        rows, keys, last = len(call.q), call.view.k.shape[2], call.q.shape[2] - 1
        weights = torch.zeros((rows, call.site.heads, keys))
        for tile in tiles(call, range(call.site.heads), [last]):
            weights[..., tile.low : tile.low + tile.weights.shape[-1]] = tile.weights[:, :, 0].float().cpu()
        self._report(LastQuery(call.site, weights, call.pair.k.order.expand(rows, -1).cpu()))
