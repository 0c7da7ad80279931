"""cuDNN's attention as one differentiable operation, for autograd and for torch's compiler. cuDNN's front end is
imported when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@torch.library.custom_op("vantage::cudnn_attend", mutates_args=())
def forward_op(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], options: list[int], scale: float
) -> tuple[Tensor, Tensor]:
    from vantage.kernels.gpu import cudnn_calls

    return cudnn_calls.attend(q, k, v, tensors, options, scale)


@torch.library.custom_op("vantage::cudnn_attend_back", mutates_args=())
def backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    stats: Tensor,
    grad: Tensor,
    tensors: list[Tensor | None],
    options: list[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from vantage.kernels.gpu import cudnn_calls

    return cudnn_calls.attend_back(q, k, v, out, stats, grad, tensors, options, scale)


@forward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, tensors: Any, options: list[int], scale: Any) -> tuple[Tensor, Tensor]:
    return empty_outputs(q, v, documents=tensors[1] is not None)


@backward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, out: Any, stats: Any, grad: Any, tensors: Any, options: Any, scale: Any):
    return (*empty_gradients(q, k, v), q.new_empty(q.shape[1], dtype=torch.float32))


class CudnnAttention(torch.autograd.Function):
    """q (B, H, T, d), k and v (B, G, S, d or e), sinks, offsets and lengths of documents, options, scale."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, *tensors, options, scale = inputs
        return _forward()(q, k, v, tensors, options, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.options, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] (as wrapped)
        q, k, v, *tensors, out, stats = ctx.saved_tensors
        dq, dk, dv, d_sinks = _backward()(q, k, v, out, stats, grads[0], tensors, ctx.options, ctx.scale)
        return dq, dk, dv, None if tensors[0] is None else d_sinks, None, None, None, None


def _forward() -> Callable[..., tuple[Tensor, Tensor]]:
    """The operator for a compiler; without one the call itself, which starts sooner."""
    if torch.compiler.is_compiling():
        return forward_op
    from vantage.kernels.gpu import cudnn_calls

    return cudnn_calls.attend


def _backward() -> Callable[..., tuple[Tensor, ...]]:
    if torch.compiler.is_compiling():
        return backward_op
    from vantage.kernels.gpu import cudnn_calls

    return cudnn_calls.attend_back


def empty_outputs(q: Tensor, v: Tensor, *, documents: bool) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, e), and the log-sum-exp (B, H, T, 1); with documents heads of a token lie side by side in it."""
    B, H, T, _ = q.shape
    out = q.new_empty(B, T, H, v.shape[3]).transpose(1, 2)
    shape = (B, T, H, 1) if documents else (B, H, T, 1)
    stats = q.new_empty(shape, dtype=torch.float32)
    return out, stats.transpose(1, 2) if documents else stats


def empty_gradients(*xs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in xs)
