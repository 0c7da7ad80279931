"""How the queries and keys of a site come about, so that their parts can be looked at one by one.

Nothing here knows a formula: the site's own projections and transforms are run, at the true positions or at rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.inspect.sites import KernelCall, Site, observing
from vantage.position.angles import highest
from vantage.spec.abilities import Bands, HasBands
from vantage.spec.attention import HasPositionParts, HasQueriesAndKeys, PositionParts, QueriesAndKeys, ability
from vantage.spec.parts import Attended, Context, Need, ScoreBias, View
from vantage.spec.positions import Pair, Positions

PlacedTransform = tuple[Any, Positions, Positions]  # a transform, and the positions of queries and keys that it is told


@final
@dataclass(frozen=True, eq=False)
class RecordedPass:
    """One site in one pass: what went in, and what the kernel saw."""

    x: Tensor
    call: KernelCall

    @property
    def site(self) -> Site:
        return self.call.site

    @property
    def bias(self) -> ScoreBias:
        """What is added to the scores of this site."""
        return self._parts().bias

    @property
    def biased(self) -> bool:
        """Whether queries and keys have a bias of their own that can be told apart."""
        return not self.site.module.crosses and self._projecting().biased

    @property
    def transforms(self) -> list[tuple[Any, Any]]:
        """(config, module) of everything that acts on queries and keys; nothing does where a site crosses."""
        if self.site.module.crosses:
            return []
        return list(zip(self.site.config.qk, self._parts().qk, strict=True))

    def queries_and_keys(self, x: Tensor | None = None) -> QueriesAndKeys:
        """Before any transform: projected again from what went in, or from something else."""
        if self.site.module.crosses:  # nothing transforms these
            return QueriesAndKeys(self.call.q, self.call.view.k)
        return self._projecting().queries_and_keys(self.x if x is None else x)

    def transformed(self, raw: QueriesAndKeys, transforms: Sequence[PlacedTransform]) -> QueriesAndKeys:
        """After these transforms, each at its own positions."""
        shape = self.site.module.shape
        still = shape.key_dim - shape.rotary_dim  # MLA: what is not turned comes first
        q, k = raw.q[..., still:], raw.k[..., still:]
        for transform, q_pos, k_pos in transforms:
            q, k = transform.query(q, q_pos), transform.key(k, k_pos)
        if still:
            q, k = torch.cat((raw.q[..., :still], q), -1), torch.cat((raw.k[..., :still], k), -1)
        return QueriesAndKeys(q, k)

    def _parts(self) -> PositionParts:
        return ability(self.site.module, HasPositionParts, "show what position adds to its scores").position_parts()

    def _projecting(self) -> HasQueriesAndKeys:
        return ability(self.site.module, HasQueriesAndKeys, "show its queries and keys before position acts on them")


@contextmanager
def recording(sites: Sequence[Site]) -> Iterator[dict[str, RecordedPass]]:
    """Inside, the last pass through each of these sites is remembered, by the site's name."""
    passes: dict[str, RecordedPass] = {}
    inputs: dict[int, Tensor] = {}

    def enter(module: nn.Module, args: tuple[Tensor, Context]) -> None:
        inputs[id(module)] = args[0]

    def record(call: KernelCall) -> None:
        passes[call.site.name] = RecordedPass(inputs.pop(id(call.site.module)), call)

    handles = [site.module.register_forward_pre_hook(enter) for site in sites]
    try:
        with observing(sites, record):
            yield passes
    finally:
        for handle in handles:
            handle.remove()


class _Reached(Exception):
    """The kernel was reached."""

    def __init__(self, call: KernelCall):
        super().__init__()
        self.call = call


@final
class _Halt:
    """In the place of a kernel: tells what it was given and computes nothing."""

    name = "none"

    def __init__(self, site: Site):
        self._site = site

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        raise _Reached(KernelCall(self._site, self.name, q_BHTd, view, pair, need, q_BHTd[..., :0]))


def reach(site: Site, x: Tensor, ctx: Context) -> RecordedPass:
    """A site up to its kernel: what the kernel would be given. No attention is computed, so there is no ``call.out``;
    over 2,000 tokens that is most of the time."""
    try:
        site.module(x, replace(ctx, choose=lambda need, q, view: _Halt(site)))
    except _Reached as reached:
        return RecordedPass(x, reached.call)
    raise Refused(f"{site.name} attention asked for no kernel: its weights cannot be shown")


def at_rest(pos: Positions) -> Positions:
    """The same tokens, all at position 0: what a position encoding leaves as it is. Masks see no difference."""
    length = pos.length
    if length is None:
        top = highest(pos)
        length = None if top is None else top + 1
    known = replace(pos.known, first=None, runs=False, rising=False, pos=(0, 0), documents=None)
    return Positions(torch.zeros_like(pos.pos), pos.order, pos.segment, known, length)


# ---- frequency bands


def bands_of(recorded: RecordedPass, pos: Positions) -> Bands | None:
    """The bands of a site; ``None``: nothing turns there."""
    shape = recorded.site.module.shape
    front = shape.key_dim - shape.rotary_dim  # MLA: what is not turned comes first
    for _, module in recorded.transforms:
        if isinstance(module, HasBands):
            own = module.bands(pos)
            of = torch.full((shape.key_dim,), -1)
            of[front : front + len(own.of)] = own.of
            return Bands(own.frequency.cpu(), of)
    return None
