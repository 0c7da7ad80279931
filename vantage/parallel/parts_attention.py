"""Attention over keys that stay where they are: each process attends to its own, and what they give is merged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.parallel.merging import merged, need_of_part, no_parts, with_sinks
from vantage.parallel.wire import Wire
from vantage.spec.parts import Attended, Dense, Kernel, Need, View
from vantage.spec.positions import Pair, Positions

Choose = Callable[[Need, Tensor, View], Kernel]


class PartsKernel:
    """All processes have the same queries, each has keys of its own. One message a call, whatever the length."""

    name = "parts"

    def __init__(self, wire: Wire, choose: Choose):
        self.wire, self.choose = wire, choose

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return no_attention_in_parts(need)

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        wide = torch.promote_types(q_BHTd.dtype, torch.float32)
        own_need = need_of_part(need)
        own = self.choose(own_need, q_BHTd, view)(q_BHTd, view, pair, own_need)
        assert own.lse is not None
        parts = self.wire.gather_parts(torch.cat([own.out.to(wide), own.lse.to(wide)[..., None]], -1))
        out, lse = parts[0][..., :-1], parts[0][..., -1]
        for part in parts[1:]:  # by rank, so that all processes come to the same bits
            out, lse = merged(out, lse, part[..., :-1], part[..., -1])
        out, lse = with_sinks(need, out, lse)
        return Attended(out.to(q_BHTd.dtype), lse=lse if need.lse else None)


def no_attention_in_parts(need: Need) -> str | None:
    """Why keys that lie over processes cannot be attended to; ``None``: they can."""
    if (why := no_parts(need)) is not None:
        return f"a cache whose tokens lie over processes {why}"
    if isinstance(need.bias, Dense) and not need.bias.pairwise:
        return "this layer's score bias depends on other keys as well, and no process has them all"
    if need.weights:
        return "a cache whose tokens lie over processes does not hand back weights"
    return None


def choosing(choose: Choose, where: Callable[[Positions], bool], kernel: Kernel | None) -> Choose:
    """As ``choose``; for keys that stand at such positions ``kernel``, or any where they could be attended to in parts
    later. What cannot be is refused."""

    def chosen(need: Need, q: Tensor, view: View) -> Kernel:
        if not where(view.pos):  # an encoder's keys, which every process has
            return choose(need, q, view)
        if (why := no_attention_in_parts(need)) is not None:
            raise Refused(f"{why}; use a cache of the model's own (model.new_cache)")
        return choose(need, q, view) if kernel is None else kernel

    return chosen
