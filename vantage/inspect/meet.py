"""How the queries and keys of a site come about, so that their parts can be looked at one by one.

Nothing here knows a formula: the site's own projections and transforms are run, at the true positions or at rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from vantage.attention import LatentAttention
from vantage.attention.cross import CrossAttention
from vantage.inspect.sites import Seen, Site, listening
from vantage.position import Rope, XPos
from vantage.position.angles import frequencies, highest
from vantage.position.rope import context_length, join
from vantage.spec.parts import Context, View
from vantage.spec.positions import Positions


class Raw(NamedTuple):
    """Projected, before anything knows a position."""

    q: Tensor  # (B, H, T, d)
    k: Tensor  # (B, G, S, d): what the transforms see
    latent: Tensor | None = None  # MLA's, (B, 1, S, r)


@final
@dataclass(frozen=True, eq=False)
class Met:
    """One site in one pass: what went in, and what the kernel saw."""

    x: Tensor
    ctx: Context
    seen: Seen

    @property
    def site(self) -> Site:
        return self.seen.site

    @property
    def transforms(self) -> list[tuple[Any, Any]]:
        """(config, module) of everything that acts on queries and keys."""
        if isinstance(self.site.module, CrossAttention):
            return []
        return list(zip(self.site.config.qk, self.site.module.qk, strict=True))

    def raw(self, x: Tensor | None = None) -> Raw:
        """Projected again from what went in, or from something else."""
        module = self.site.module
        if isinstance(module, CrossAttention):  # nothing transforms these
            return Raw(self.seen.q, self.seen.view.k)
        if isinstance(module, LatentAttention):
            q, latent, k_rot = module.project(self.x if x is None else x)
            return Raw(q, k_rot, latent)
        q, k, _ = module.project(self.x if x is None else x)
        return Raw(q, k)

    def meet(self, raw: Raw, transforms: Sequence[tuple[Any, Positions, Positions]]) -> tuple[Tensor, Tensor]:
        """Queries (B, H, T, d) and keys (B, G, S, d) after these transforms, each at its own positions."""
        module = self.site.module
        q, k = raw.q, raw.k
        still = q[..., :0]
        if isinstance(module, LatentAttention):
            still, q = q.split((module.config.nope_dim, module.config.rope_dim), -1)
        for transform, q_pos, k_pos in transforms:
            q, k = transform.query(q, q_pos), transform.key(k, k_pos)
        if isinstance(module, LatentAttention):
            assert raw.latent is not None
            kept = View(torch.cat((raw.latent, k), -1), raw.latent, self.ctx.pos)
            q, view, _ = module.expanded(still, q, kept)
            k = view.k
        return q, k


@contextmanager
def meeting(sites: Sequence[Site]) -> Iterator[dict[str, Met]]:
    """Inside, the last pass through each of these sites is remembered, by the site's name."""
    found: dict[str, Met] = {}
    went_in: dict[int, tuple[Tensor, Context]] = {}

    def enter(module: nn.Module, args: tuple[Tensor, Context]) -> None:
        went_in[id(module)] = args

    def see(seen: Seen) -> None:
        found[seen.site.name] = Met(*went_in.pop(id(seen.site.module)), seen)

    handles = [site.module.register_forward_pre_hook(enter) for site in sites]
    try:
        with listening(sites, see):
            yield found
    finally:
        for handle in handles:
            handle.remove()


def at_rest(pos: Positions) -> Positions:
    """The same tokens, all at position 0: what a position encoding leaves as it is. Masks see no difference."""
    length = pos.length
    if length is None:
        top = highest(pos)
        length = None if top is None else top + 1
    known = replace(pos.known, first=None, pos=(0, 0))
    return Positions(torch.zeros_like(pos.pos), pos.order, pos.segment, known, length)


# ---- frequency bands


@final
@dataclass(frozen=True, eq=False)
class Bands:
    """The pairs of dimensions that a rotation turns."""

    frequency: Tensor  # (n,) radians a position
    of: Tensor  # (d,): the band of each dimension of a whole head, -1 where nothing turns

    @property
    def wavelength(self) -> Tensor:
        """Positions in a whole turn; inf for a band that stands still."""
        return 2 * torch.pi / self.frequency


def bands_of(met: Met, pos: Positions) -> Bands | None:
    """The bands of a site; ``None``: nothing turns there."""
    site = met.site
    if isinstance(site.module, CrossAttention):
        return None
    shape = site.module.shape
    front = shape.key_dim - shape.rotary_dim  # MLA: what is not turned comes first
    for config, module in met.transforms:
        if isinstance(config, Rope):
            length = context_length(pos) if config.rule.depends_on_length else None
            turned = module.turned
            rate, _ = config.rule.frequencies(turned, config.base, length)
        elif isinstance(config, XPos):
            turned = shape.rotary_dim
            rate = frequencies(turned, config.base)
        else:
            continue
        number = torch.arange(turned // 2)
        of = torch.full((shape.key_dim,), -1)
        of[front : front + turned] = join(number, number, config.pairing)
        return Bands(rate.cpu(), of)
    return None
