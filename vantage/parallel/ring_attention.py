"""Attention over keys that go round: each process meets one share after the other, and merges by the log-sum-exp.

No process ever holds more than two shares of keys and values. On the way back they go round once more, and what each
process adds to their gradient goes with them: scores are computed again instead of kept (Liu et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from vantage.parallel.merging import merged, need_of_part, no_parts, share_of, with_sinks
from vantage.parallel.wire import Wire
from vantage.spec.forms import QueryAndKey
from vantage.spec.parts import Attended, Dense, Kernel, Need, Pointwise, View
from vantage.spec.positions import Pair, Positions

Choose = Callable[[Need, Tensor, View], Kernel]


class RingKernel:
    """``shares``: where the keys stand that come by, this process's own first, then those of the ranks after it."""

    name = "ring"

    def __init__(self, wire: Wire, shares: Sequence[Positions], choose: Choose):
        self.wire, self.shares, self.choose = wire, shares, choose

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        if (why := no_parts(need)) is not None:
            return f"a ring {why}"
        if isinstance(need.bias, Dense):
            return "this layer's score bias exists as a whole only, for all keys at once, and a ring never has them all"
        if isinstance(need.bias, QueryAndKey):
            return "this layer's score bias has a number for each key, which does not go round with it"
        if need.weights:
            return "a ring does not hand back weights"
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        bias = _tensors_of(need.bias)
        value_bias = cast(Any, need.value_bias)
        learned = list(value_bias.parameters()) if isinstance(value_bias, nn.Module) else []
        work = RingPass(self, pair.q, need_of_part(need), len(bias))
        out, lse = _Ring.apply(work, q_BHTd, view.k, view.v, *bias, *learned)
        out, lse = with_sinks(need, out, lse)
        return Attended(out.to(q_BHTd.dtype), lse=lse if need.lse else None)


class RingPass:
    """One layer's way round, forwards or back."""

    def __init__(self, kernel: RingKernel, q_pos: Positions, need: Need, bias_tensors: int):
        self.kernel, self.q_pos, self.need, self.bias_tensors = kernel, q_pos, need, bias_tensors

    def part(self, q: Tensor, k: Tensor, v: Tensor, bias: Sequence[Tensor], share: int) -> tuple[Tensor, Tensor]:
        """What the keys of one share give alone, and their log-sum-exp, in float32 at least."""
        pos, wide = self.kernel.shares[share], torch.promote_types(q.dtype, torch.float32)
        need = replace(self.need, bias=_with_tensors(self.need.bias, bias))
        view = View(k, v, pos)
        # what a bias makes of a pair is kept as long as the pair: here for one call alone
        pair = self.q_pos.against(pos) if need.bias is None else Pair(self.q_pos, pos)
        attended = self.kernel.choose(need, q, view)(q, view, pair, need)
        assert attended.lse is not None
        return attended.out.to(wide), attended.lse.to(wide)


class _Ring(Function):
    @staticmethod
    def forward(ctx: Any, work: RingPass, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        wire, bias = work.kernel.wire, more[: work.bias_tensors]
        ctx.work = work
        k_own, v_own = k, v
        out, lse = work.part(q, k, v, bias, 0)
        for step in range(1, wire.size):
            k, v = wire.shift((k, v), -1)  # from the rank after this one
            o, part = work.part(q, k, v, bias, step)
            out, lse = merged(out, lse, o, part)
        ctx.save_for_backward(q, k_own, v_own, out, lse, *more)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        work, wire = ctx.work, ctx.work.kernel.wire
        q, k, v, out, lse, *more = ctx.saved_tensors
        out, lse = out.detach(), lse.detach()  # torch hands results back with the graph that made them
        grad_out, grad_lse = grads
        level = (grad_out * out).sum(-1) - grad_lse  # what a share's whole weight is measured against
        bias, learned = more[: work.bias_tensors], list(more[work.bias_tensors :])
        grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
        sums: list[Tensor] = [torch.zeros_like(x) for x in (q, *more)]
        for step in range(wire.size):
            if step:
                k, v, grad_k, grad_v = wire.shift((k, v, grad_k, grad_v), -1)
            with torch.enable_grad():
                own_q, own_k, own_v = (x.detach().requires_grad_() for x in (q, k, v))
                own_bias = [x.detach().requires_grad_(x.is_floating_point()) for x in bias]
                o, part = work.part(own_q, own_k, own_v, own_bias, step)
                share = share_of(part, lse)
                value = (grad_out * o * share[..., None]).sum() - (level * share).sum()
                wanted = [own_q, own_k, own_v, *own_bias, *learned]
                floats = [x for x in wanted if x.requires_grad]
                computed = iter(torch.autograd.grad(value, floats, allow_unused=True))
            gradients = [next(computed) if x.requires_grad else None for x in wanted]
            of_q, of_k, of_v, *of_more = gradients
            grad_k = grad_k if of_k is None else grad_k + of_k
            grad_v = grad_v if of_v is None else grad_v + of_v
            for total, g in zip(sums, (of_q, *of_more), strict=True):
                if g is not None:
                    total += g
        if wire.size > 1:
            grad_k, grad_v = wire.shift((grad_k, grad_v), -1)  # home again
        of_q, *of_more = sums
        return (
            None,
            of_q,
            grad_k,
            grad_v,
            *(g if x.is_floating_point() else None for g, x in zip(of_more, more, strict=True)),
        )


def _tensors_of(bias: Pointwise | Dense | None) -> list[Tensor]:
    if not is_dataclass(bias):
        return []
    return [value for f in fields(bias) if isinstance(value := getattr(bias, f.name), Tensor)]


def _with_tensors(bias: Pointwise | Dense | None, tensors: Sequence[Tensor]) -> Pointwise | Dense | None:
    """The same bias over these tensors, in the order of ``_tensors_of``."""
    if not is_dataclass(bias) or not tensors:
        return bias
    names = [f.name for f in fields(bias) if isinstance(getattr(bias, f.name), Tensor)]
    return replace(cast(Any, bias), **dict(zip(names, tensors, strict=True)))
