"""Where a model attends, and listening there: a kernel around the kernel that was chosen.

Listening puts nothing in and takes nothing out. While somebody listens, native whole steps stand aside (they check for
hooks), so what is seen is what every module did, with whichever kernel it would have run. That is the same computation
in another order of adding, so where a native step would have run, and above all with packed weights (``dtype="auto"``),
the last digits of the logits are others than without a listener.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from vantage.attention.cross import CrossAttention
from vantage.attention.scorer import Scorer
from vantage.errors import Refused
from vantage.model import Model
from vantage.spec.model import Layer
from vantage.spec.parts import Attended, Context, Kernel, Need, View
from vantage.spec.positions import Pair

KINDS = ("self", "cross", "encoder")


@final
@dataclass(frozen=True, eq=False)
class Site:
    """One attention module. ``kind``: "self", "cross", or "encoder" (the encoder of an encoder-decoder)."""

    kind: str
    layer: int
    heads: int
    config: Layer  # the layer's own description
    width: int  # of the model it is in
    module: Any  # has `scorer`, and the projections of its kind

    @property
    def name(self) -> str:
        return f"{self.kind} {self.layer}"


class Seen(NamedTuple):
    """One attention as it ran: what its kernel was given and what it gave."""

    site: Site
    kernel: str
    q: Tensor  # (B, H, T, d), transformed
    view: View
    pair: Pair
    need: Need
    out: Tensor  # (B, H, T, d_v)


See = Callable[[Seen], None]


def sites_of(model: Model) -> list[Site]:
    """Every attention of a model, encoder first."""
    inner = [] if model.encoder is None else [replace(site, kind="encoder") for site in sites_of(model.encoder)]
    spec = model.spec
    found = [
        Site("cross" if isinstance(module, CrossAttention) else "self", i, _heads(module), layer, spec.width, module)
        for i, (block, layer) in enumerate(zip(model.blocks, spec.layers, strict=True))
        for module in block.modules()
        if any(isinstance(child, Scorer) for child in module.children())
    ]
    if not found:
        raise Refused("this model has no attention whose weights could be shown: its layers have no scorer")
    return inner + found


def _heads(module: Any) -> int:
    return module.shape.heads


@final
class Recorder:
    """A kernel that runs another and tells."""

    def __init__(self, inner: Kernel, site: Site, see: See):
        self.name, self._inner, self._site, self._see = inner.name, inner, site, see

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return self._inner.refuses(need, q, view)

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        done = self._inner(q_BHTd, view, pair, need)
        self._see(Seen(self._site, self.name, q_BHTd, view, pair, need, done.out))
        return done


@contextlib.contextmanager
def listening(sites: Sequence[Site], see: See) -> Iterator[None]:
    """Inside, every pass through these sites is told, whoever runs the model."""
    handles = [site.module.register_forward_pre_hook(partial(_wrap, site, see)) for site in sites]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _wrap(site: Site, see: See, module: nn.Module, args: tuple[Tensor, Context]) -> tuple[Tensor, Context]:
    x, ctx = args

    def choose(need: Need, q: Tensor, view: View) -> Kernel:
        return Recorder(ctx.choose(need, q, view), site, see)

    return x, replace(ctx, choose=choose)
