"""The fused kernel as one differentiable operation, for autograd and for torch's compiler. Triton is imported when it
runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SLOPE = 1  # the forms by number, as gpu/tiles.py has them
NUMBERS = 4  # forms below this one have a number or two for each head
TABLES = (4, 5)  # forms that are a table: one for all, one for each query
BY_KEY = 6
PIECES = 7
DISTANCE_KEYS = 10  # has kernels of its own: gpu/distance_operators.py
COUNTS = 11  # and so has this: gpu/count_operators.py
FORWARD, BACKWARD = 1, 2  # passes of ``FusedPlan.whole_rows``
SUMS_OF_ROWS = (*TABLES, BY_KEY, COUNTS)  # forms whose gradients need the sum of each row of the scores' gradient


class FusedPlan(NamedTuple):
    """All that is known before a kernel runs. Whole numbers, as an operator takes a list of them; 1 is true."""

    form: int
    one_sided: int
    learned: int  # the bias wants a gradient; of distance keys, which always do for their queries: the keys too
    run: int  # places run on: order and position are arithmetic
    fractional: int  # positions are float32, carried as int32
    off: int  # first query less first key, where places run on
    origin: int  # the first key
    low: int  # distance of a table's first entry; of distance keys, the row of the distance ``off``
    width: int  # of a table; of counts: how many there are
    banks: int  # tiles of a table's biases, ready made; 0: they are looked up. Of pieces: groups of break points
    empty: int  # there may be empty places
    causal: int
    window: int
    chunk: int
    prefix: int
    segments: int
    block: int
    own_queries: int = 0  # of distance keys: they meet the attention's own queries
    whole_rows: int = 0  # for gpu/causal_rows.py: FORWARD, BACKWARD or both


def _forward_of_kernels(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], plan: list[int], factors: list[float]
) -> tuple[Tensor, Tensor]:
    from vantage.kernels.gpu import operators

    return operators.attend(q, k, v, tensors, plan, factors)


def _backward_of_kernels(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    grad_lse: Tensor | None,
    tensors: list[Tensor | None],
    plan: list[int],
    factors: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from vantage.kernels.gpu import operators

    return operators.attend_back(q, k, v, out, lse, grad, grad_lse, tensors, plan, factors)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, tensors: Any, plan: Any, factors: Any) -> tuple[Tensor, Tensor]:
    from vantage.kernels.gpu import operators

    return operators.empty_outputs(q, v)


def _fake_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, grad: Any, grad_lse: Any, tensors: Any, plan: Any, f: Any
) -> tuple[Tensor, ...]:
    from vantage.kernels.gpu import operators

    return operators.empty_gradients(q, k, v, plan, tensors)


_library = torch.library.Library("vantage", "FRAGMENT")


def _operator(name: str, kernels: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """An operator for a compiler. ``custom_op`` makes the same one, whose call takes 23 µs of a host where this one
    takes 9: it asks whether an output is an input, which is never so here."""
    schema = torch.library.infer_schema(kernels, mutates_args=())
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, kernels, "CompositeExplicitAutograd")
    torch.library.register_fake(f"vantage::{name}", fake, lib=_library)
    return getattr(torch.ops.vantage, name).default


forward_op = _operator("attend", _forward_of_kernels, _fake_forward)
backward_op = _operator("attend_back", _backward_of_kernels, _fake_backward)


class FusedAttention(torch.autograd.Function):
    """q (B, H, T, d), k and v (B, G, S, d or e), two tensors of the bias, sinks, places, tile ranges,
    what the passes for Hopper read besides, plan, factors. The context comes first, and is not filled by a function of
    its own: torch would read the signature in every call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, *tensors, plan, factors = inputs
        out, lse = _forward()(q, k, v, tensors, plan, factors)
        ctx.save_for_backward(q, k, v, *tensors, out, lse)
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.factors = plan, factors
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] (as wrapped)
        q, k, v, *tensors, out, lse = ctx.saved_tensors
        grad, grad_lse = grads
        if grad is None:
            grad = torch.zeros_like(out)
        dq, dk, dv, one, two, delta = _backward()(q, k, v, out, lse, grad, grad_lse, tensors, ctx.plan, ctx.factors)
        plan, sinks = FusedPlan(*ctx.plan), tensors[2]
        d_one, d_two, d_sinks = None, None, None
        by_rows = plan.learned and plan.form in SUMS_OF_ROWS
        if not by_rows and sinks is None:
            d_one, d_two = _bias_gradients(plan, one, two, delta)
        else:
            shared = delta if grad_lse is None else delta - grad_lse
            to_sink = _weight_of_sinks(sinks, lse)
            # a row of the scores' gradient adds up to what the sink takes, since weights add up to one
            row_sums = torch.where(lse == float("-inf"), 0.0, delta - shared * (1 - to_sink)) if by_rows else delta
            d_one, d_two = _bias_gradients(plan, one, two, row_sums)
            if plan.learned and plan.form == COUNTS:
                one[..., -1] += (row_sums * ctx.factors[2]).to(one.dtype)
                d_one = one
            if plan.learned and plan.form == TABLES[1] and plan.banks:
                d_two = _gradient_of_values(two, grad, torch.where(lse == float("-inf"), 0.0, 1 - to_sink))
            if sinks is not None:
                d_sinks = -to_sink * shared
                d_sinks = d_sinks.sum((0, 2)) if sinks.dim() == 1 else d_sinks
        return dq, dk, dv, d_one, d_two, d_sinks, *[None] * (len(tensors) - 3 + 2)  # and plan and factors


def attend(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. Without gradients autograd's own work, half of a call's time on the host, is left out."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return FusedAttention.apply(*inputs)
    q, k, v, *tensors, plan, factors = inputs
    return _forward()(q, k, v, tensors, plan, factors)


def _forward() -> Callable[..., tuple[Tensor, Tensor]]:
    """The operator for a compiler; without one the kernels themselves, which start in half the time."""
    if torch.compiler.is_compiling():
        return forward_op
    from vantage.kernels.gpu import operators

    return operators.attend


def _backward() -> Callable[..., tuple[Tensor, ...]]:
    if torch.compiler.is_compiling():
        return backward_op
    from vantage.kernels.gpu import operators

    return operators.attend_back


def _weight_of_sinks(sinks: Tensor | None, lse: Tensor) -> Tensor | float:
    if sinks is None:
        return 0.0
    return torch.exp((sinks[None, :, None] if sinks.dim() == 1 else sinks) - lse)


def _bias_gradients(plan: FusedPlan, one: Tensor, two: Tensor, row_sums: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """From the sums of the kernels. The last entry of a table gets what is left of a row."""
    form = plan.form
    if form == COUNTS or (not plan.learned and form != DISTANCE_KEYS):
        return None, None
    if form == BY_KEY:
        return row_sums, two
    if form == PIECES:
        return _gradients_of_pieces(plan, one, two)
    if form == DISTANCE_KEYS:
        given = one.numel() > 0 and (plan.learned or not plan.own_queries)
        return one if given else None, two if plan.learned else None
    if form not in TABLES:
        return one.sum((0, 2)), None if form == SLOPE else two.sum((0, 2))
    if form == TABLES[0]:
        row_sums = row_sums.sum((0, 2))
        one = one if plan.banks else one.sum((0, 2))  # where tiles are ready made, rows have been added up
    one[..., -1] = row_sums - one[..., :-1].sum(-1)
    return one, None


def _gradients_of_pieces(plan: FusedPlan, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """A piece has what the tiles that begin in it have (``one[..., :2]``), and what lies beyond the break point before
    it, less what lies beyond its own (``one[..., 2:]``). Break points stay where they are."""
    begun, beyond = one.sum((0, 2)).split(2, -1)  # (H, width, 2) each: of offsets, and of slopes
    in_piece = begun - beyond
    in_piece[:, 1:] += beyond[:, :-1]
    to_query, to_c = two
    head = torch.cat((to_c.sum()[None], to_c.new_zeros(plan.width + 2)))
    return in_piece.flip(-1), torch.cat((head, to_query.flatten()))


def _gradient_of_values(mass: Tensor, grad: Tensor, whole: Tensor) -> Tensor:
    """(W, e): the weights at each distance, times the gradient of the output. The last distance has what is left."""
    width = mass.shape[-1]
    rest = (whole - mass[..., :-1].sum(-1))[..., None]
    more = mass.new_zeros(()).expand(*mass.shape[:-1], -width % 8)  # products want multiples of 8
    mass = torch.cat((mass[..., :-1], rest, more), -1)
    rows = zip(mass.to(grad.dtype).transpose(-1, -2), grad, strict=True)  # heads of a token lie side by side
    return torch.stack([torch.bmm(weights, of).float().sum(0) for weights, of in rows]).sum(0)[:width]
