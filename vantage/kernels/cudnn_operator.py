"""cuDNN's attention as one differentiable operation, for autograd and for torch's compiler. cuDNN's front end is
imported when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vantage.kernels.alignment import is_aligned, side_by_side

if TYPE_CHECKING:
    from vantage.kernels.gpu.cudnn_calls import PassCalls


@torch.library.custom_op("vantage::cudnn_attend", mutates_args=())
def forward_op(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, options: list[int], scale: float
) -> tuple[Tensor, Tensor]:
    """For a compiler, which has no documents. How tensors lie is looked at here: in what it traces, that breaks a
    graph."""
    from vantage.kernels.gpu import cudnn_calls

    q, k, v = (laid_out(x) for x in (q, k, v))
    return cudnn_calls.attend(q, k, v, sinks, cudnn_calls.PassCalls(options, scale))


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

    q, k, v = (laid_out(x) for x in (q, k, v))
    calls = cudnn_calls.PassCalls(options, scale)
    dq, dk, dv, d_sinks = cudnn_calls.attend_back(q, k, v, sinks, out, stats, grad, calls)
    return dq, dk, dv, q.new_zeros(q.shape[1], dtype=torch.float32) if d_sinks is None else d_sinks


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
    """Without a compiler: q, k, v, sinks, and the calls of the pass. The context comes first, and no other function
    fills it: torch would read the signature in every call."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, calls: PassCalls) -> Tensor:
        from vantage.kernels.gpu import cudnn_calls

        out, stats = cudnn_calls.attend(q, k, v, sinks, calls)
        ctx.save_for_backward(q, k, v, sinks, out, stats)
        ctx.calls = calls
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] (as wrapped)
        from vantage.kernels.gpu import cudnn_calls

        q, k, v, sinks, out, stats = ctx.saved_tensors
        return *cudnn_calls.attend_back(q, k, v, sinks, out, stats, grads[0], ctx.calls), None


def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, calls: PassCalls) -> Tensor:
    """Without gradients autograd's own work, half of a call's time on the host, is left out."""
    if torch.is_grad_enabled():
        return CudnnAttention.apply(q, k, v, sinks, calls)
    from vantage.kernels.gpu import cudnn_calls

    return cudnn_calls.attend(q, k, v, sinks, calls)[0]


def suits(x: Tensor, *, packed: bool) -> bool:
    """Whether the last dimension is dense, rows lie at multiples of 16 bytes and, where documents are packed, all
    tokens at one distance."""
    one_distance = not packed or len(x) == 1 or x.stride(0) == x.shape[2] * x.stride(2)
    return is_aligned(x) and one_distance and x.stride(2) > 0


def laid_out(x: Tensor) -> Tensor:
    return x if suits(x, packed=False) else side_by_side(x)


def empty_outputs(q: Tensor, v: Tensor, *, documents: bool) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, e), and the log-sum-exp (B, H, T, 1); with documents, which are counted over all rows, each head
    has all rows one behind the other in it."""
    (B, H, T, _), e = q.shape, v.shape[3]
    out = q.new_empty_strided((B, H, T, e), (T * H * e, e, H * e, 1))
    strides = (T, B * T, 1, 1) if documents else (H * T, T, 1, 1)
    return out, q.new_empty_strided((B, H, T, 1), strides, dtype=torch.float32)


def empty_gradients(*xs: Tensor) -> tuple[Tensor, ...]:
    """Heads of a token side by side."""

    def empty(x: Tensor) -> Tensor:
        B, H, T, d = x.shape
        return x.new_empty_strided((B, H, T, d), (T * H * d, d, H * d, 1))

    return tuple(empty(x) for x in xs)
