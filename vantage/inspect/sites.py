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

from vantage.errors import Refused
from vantage.model import Model
from vantage.spec.attention import attentions
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
    module: Any  # an ``Attention``

    @property
    def name(self) -> str:
        return f"{self.kind} {self.layer}"


class KernelCall(NamedTuple):
    """One attention as it ran: what its kernel was given and what it gave."""

    site: Site
    kernel: str
    q: Tensor  # (B, H, T, d), transformed
    view: View
    pair: Pair
    need: Need
    out: Tensor  # (B, H, T, d_v)


Observer = Callable[[KernelCall], None]


def sites_of(model: Model) -> list[Site]:
    """Every attention of a model, encoder first."""
    inner = [] if model.encoder is None else [replace(site, kind="encoder") for site in sites_of(model.encoder)]
    spec = model.spec
    sites = [
        Site("cross" if module.crosses else "self", i, module.shape.heads, layer, spec.width, module)
        for i, (block, layer) in enumerate(zip(model.blocks, spec.layers, strict=True))
        for module in attentions(block)
    ]
    if not sites:
        kinds = ", ".join(dict.fromkeys(type(layer.attention).__name__ for layer in spec.layers))
        raise Refused(
            f"this model has no attention whose weights could be shown: what {kinds} builds has no shape and crosses "
            "(vantage.spec.attention.Attention)"
        )
    return inner + sites


@final
class Recorder:
    """A kernel that runs another and reports each call."""

    def __init__(self, inner: Kernel, site: Site, observe: Observer):
        self.name, self._inner, self._site, self._observe = inner.name, inner, site, observe

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return self._inner.refuses(need, q, view)

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        result = self._inner(q_BHTd, view, pair, need)
        self._observe(KernelCall(self._site, self.name, q_BHTd, view, pair, need, result.out))
        return result


@contextlib.contextmanager
def observing(sites: Sequence[Site], observe: Observer) -> Iterator[None]:
    """Inside, every call of a kernel by these sites is reported, whoever runs the model."""
    handles = [site.module.register_forward_pre_hook(partial(_wrap, site, observe)) for site in sites]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _wrap(site: Site, observe: Observer, module: nn.Module, args: tuple[Tensor, Context]) -> tuple[Tensor, Context]:
    x, ctx = args

    def choose(need: Need, q: Tensor, view: View) -> Kernel:
        return Recorder(ctx.choose(need, q, view), site, observe)

    return x, replace(ctx, choose=choose)
