"""Products of a training step on a CPU: the faster of two libraries that torch brings.

torch takes Intel's MKL for float32. On an AMD processor oneDNN, which torch has as well, takes a tenth less time for
the product of a forward pass and for the gradient of its input, if they are large enough; not for the weight's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

MIN_MULTIPLY_ADDS = 25_000_000  # multiply-adds from which on it gains


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear``, by the other library where that is faster and a gradient is wanted."""
    if torch.is_grad_enabled() and _gains(x, weight):
        product: Tensor = ProductWithGradient.apply(x, weight, bias)
        return product
    return F.linear(x, weight, bias)


def _gains(x: Tensor, weight: Tensor) -> bool:
    return (
        AMD
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and x.dim() > 1
        and x.numel() * len(weight) >= MIN_MULTIPLY_ADDS
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()  # it has no rule for vmap
    )


def _amd() -> bool:
    processor = os.environ.get("PROCESSOR_IDENTIFIER", "")  # Windows
    with contextlib.suppress(OSError):
        processor += Path("/proc/cpuinfo").read_text()
    return "AuthenticAMD" in processor and torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()


AMD = _amd()


class ProductWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return (_opaque if torch.compiler.is_compiling() else _product)(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        rows = grad.flatten(0, -2)
        dx = ProductWithGradient.apply(grad, weight.t(), None) if ctx.needs_input_grad[0] else None
        dw = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return dx, dw, rows.sum(0) if ctx.needs_input_grad[2] else None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


# The compiler knows that operator for constant weights only.
_opaque = torch.library.custom_op("vantage::product", _product, mutates_args=())


@_opaque.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], len(weight)))


@register_flop_formula(torch.ops.mkldnn._linear_pointwise)
def _(x: torch.Size, weight: torch.Size, *rest: Any, **more: Any) -> int:
    return 2 * x.numel() * weight[0]
