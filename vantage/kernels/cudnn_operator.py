"""cuDNN's attention as one differentiable operation, for autograd and for torch's compiler. cuDNN's front end is
imported when it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@torch.library.custom_op("vantage::cudnn_attend", mutates_args=())
def forward_op(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, options: list[int], scale: float
) -> tuple[Tensor, Tensor]:
    """For a compiler, which has no documents. How tensors lie is looked at here: in what it traces, that breaks a
    graph."""
    from vantage.kernels.gpu import cudnn_calls

    q, k, v = (laid_out(x, packed=False) for x in (q, k, v))
    return cudnn_calls.attend(q, k, v, [sinks, None, None], options, scale)


@torch.library.custom_op("vantage::cudnn_attend_back", mutates_args=())
def backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    stats: Tensor,
    grad: Tensor,
    sinks: Tensor | None,
    options: list[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from vantage.kernels.gpu import cudnn_calls

    q, k, v = (laid_out(x, packed=False) for x in (q, k, v))
    return cudnn_calls.attend_back(q, k, v, out, stats, grad, [sinks, None, None], options, scale)


@forward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, sinks: Any, options: list[int], scale: Any) -> tuple[Tensor, Tensor]:
    return empty_outputs(q, v, documents=False)


@backward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, out: Any, stats: Any, grad: Any, sinks: Any, options: Any, scale: Any):
    return (*empty_gradients(q, k, v), q.new_empty(q.shape[1], dtype=torch.float32))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.options, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    q, k, v, sinks, out, stats = ctx.saved_tensors
    dq, dk, dv, d_sinks = backward_op(q, k, v, out, stats, grad, sinks, ctx.options, ctx.scale)
    return dq, dk, dv, None if sinks is None else d_sinks, None, None


forward_op.register_autograd(_gradients, setup_context=_keep)


class CudnnAttention(torch.autograd.Function):
    """Without a compiler: the calls themselves start sooner than operators do. q (B, H, T, d), k and v (B, G, S, d or
    e), sinks, offsets and lengths of documents, options, scale."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        from vantage.kernels.gpu import cudnn_calls

        q, k, v, *tensors, options, scale = inputs
        return cudnn_calls.attend(q, k, v, tensors, options, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.options, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] (as wrapped)
        from vantage.kernels.gpu import cudnn_calls

        q, k, v, *tensors, out, stats = ctx.saved_tensors
        dq, dk, dv, d_sinks = cudnn_calls.attend_back(q, k, v, out, stats, grads[0], tensors, ctx.options, ctx.scale)
        return dq, dk, dv, None if tensors[0] is None else d_sinks, None, None, None, None


def laid_out(x: Tensor, *, packed: bool) -> Tensor:
    """As it is, if the last dimension is dense, rows lie at multiples of 16 bytes and, where documents are packed, all
    tokens at one distance; else a copy with the heads of a token side by side."""
    numbers = 16 // x.element_size()
    even = x.stride(3) == 1 and not any(n % numbers for n in (x.storage_offset(), *x.stride()[:3]))
    one_distance = not packed or len(x) == 1 or x.stride(0) == x.shape[2] * x.stride(2)
    if even and one_distance and x.stride(2) > 0:
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def empty_outputs(q: Tensor, v: Tensor, *, documents: bool) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, e), and the log-sum-exp (B, H, T, 1); with documents heads of a token lie side by side in it."""
    B, H, T, _ = q.shape
    out = q.new_empty(B, T, H, v.shape[3]).transpose(1, 2)
    shape = (B, T, H, 1) if documents else (B, H, T, 1)
    stats = q.new_empty(shape, dtype=torch.float32)
    return out, stats.transpose(1, 2) if documents else stats


def empty_gradients(*xs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in xs)
