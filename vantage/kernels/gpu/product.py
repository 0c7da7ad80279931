"""Products of one row with a weight matrix, at the speed at which the weights can be read; norms and activations.

One program makes a few outputs. A norm before the product, an activation after it and a residual are part of the same
pass: the sum of squares is worked out beside the product, and divides its result. From two rows on torch's own matrix
products are as fast, and norms and activations are kernels of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

Launch = Any  # triton's kernels: indexed by their grid, then called
NONE, RELU, GELU, GELU_TANH, SILU = -1, 0, 1, 2, 3  # in the order of the native kernels' functions


@triton.jit
def activated(x, FUNCTION: tl.constexpr):
    if FUNCTION == 0:
        x = tl.maximum(x, 0.0)
    if FUNCTION == 1:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if FUNCTION == 2:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)  # 1 + tanh(y) = 2·sigmoid(2y)
    if FUNCTION == 3:
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def _weights(w, n, at, N, K):
    inside = (n < N)[:, None] & (at < K)[None, :]
    return tl.load(w + n.to(tl.int64)[:, None] * K + at[None, :], mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def product(
    x, w, bias, gain, out, K, N, eps, offset, NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    FUNCTION: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out (N) = function(norm(x) · wᵀ + bias), or with ADD that more. GATED: the function of the first N outputs, times
    the next N. DEPENDENT: the first weights are read while the kernel before still runs; later ones a tile ahead."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a = _weights(w, n, k, N, K)
    b = a
    if GATED:
        b = _weights(w, n + N, k, 2 * N, K)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    other = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    square = tl.zeros((BLOCK_K,), tl.float32)
    for start in range(0, K, BLOCK_K):
        at = start + k
        v = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        if NORM:
            square += v * v
            v *= offset + tl.load(gain + at, mask=at < K, other=0.0).to(tl.float32)
        total += a.to(tl.float32) * v[None, :]
        a = _weights(w, n, at + BLOCK_K, N, K)
        if GATED:
            other += b.to(tl.float32) * v[None, :]
            b = _weights(w, n + N, at + BLOCK_K, 2 * N, K)
    y = tl.sum(total, 1)
    z = tl.sum(other, 1)
    if NORM:
        size = tl.rsqrt(tl.sum(square, 0) / K + eps)
        y *= size
        z *= size
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
        if GATED:
            z += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)
    y = activated(y, FUNCTION)
    if GATED:
        y *= z
    if ADD:
        y += tl.load(out + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=n < N)


class ProductTile(NamedTuple):
    """How a product is cut up."""

    outputs: int
    inputs: int
    warps: int


def tile_for(inputs: int, outputs: int, *, gated: bool, normed: bool) -> ProductTile:
    """As measured on an H200, for widths from 2,048 to 14,336."""
    width = triton.next_power_of_2(inputs)
    if gated:
        return ProductTile(4, min(512, width), 2)
    if normed:
        return ProductTile(8, min(1024, width), 4) if outputs <= 4096 else ProductTile(16, min(512, width), 4)
    return ProductTile(4, min(1024, width), 4)


def multiply(
    x: Tensor,
    w: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    gain: Tensor | None = None,
    eps: float = 0.0,
    offset: float = 0.0,
    add: bool = False,
    function: int = NONE,
    gated: bool = False,
    dependent: bool = False,
    tile: ProductTile | None = None,
) -> None:
    """x (1, K) by w (N, K), or (2N, K) where gated, into out (1, N). ``gain``: the weight of an RMS norm of x."""
    inputs, outputs = x.shape[1], out.shape[1]
    tile = tile or tile_for(inputs, outputs, gated=gated, normed=gain is not None)
    kernel: Launch = product
    kernel[(triton.cdiv(outputs, tile.outputs),)](
        x, w, x if bias is None else bias, x if gain is None else gain, out, inputs, outputs, eps, offset,
        NORM=gain is not None, BIAS=bias is not None, ADD=add, FUNCTION=function, GATED=gated, BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs, DEPENDENT=dependent, num_warps=tile.warps, **dependent_option(dependent),
    )  # fmt: skip


def dependent_option(dependent: bool) -> dict[str, bool]:
    """Without the option where it is not wanted: not every version of Triton knows it."""
    return {"launch_pdl": True} if dependent else {}


@triton.jit
def _norm_kernel(
    x, gain, bias, out, heads, width, stride, column, eps, offset, BIAS: tl.constexpr, GAIN: tl.constexpr,
    CENTRED: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    base = row // heads * stride + column + row % heads * width
    d = tl.arange(0, WIDTH)
    inside = d < width
    v = tl.load(x + base + d, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        v = tl.where(inside, v - tl.sum(v, 0) / width, 0.0)
    v *= tl.rsqrt(tl.sum(v * v, 0) / width + eps)
    if GAIN:
        v *= offset + tl.load(gain + d, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        v += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + base + d, v.to(out.dtype.element_ty), mask=inside)


def norm(
    x: Tensor,
    out: Tensor,
    *,
    gain: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centred: bool,
    dependent: bool = False,
) -> None:
    """The norm of every row of x (rows, width)."""
    rows, width = x.shape
    kernel: Launch = _norm_kernel
    kernel[(rows,)](
        x, x if gain is None else gain, x if bias is None else bias, out, 1, width, x.stride(0), 0, eps, offset,
        BIAS=bias is not None, GAIN=gain is not None, CENTRED=centred, WIDTH=triton.next_power_of_2(width),
        DEPENDENT=dependent, num_warps=4 if width <= 4096 else 8, **dependent_option(dependent),
    )  # fmt: skip


@triton.jit
def _activate_kernel(
    x, out, hidden, stride, FUNCTION: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < hidden
    v = activated(tl.load(x + row * stride + d, mask=inside, other=0.0).to(tl.float32), FUNCTION)
    if GATED:
        v *= tl.load(x + row * stride + hidden + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + d, v.to(out.dtype.element_ty), mask=inside)


def activate(x: Tensor, out: Tensor, function: int, *, gated: bool, dependent: bool = False) -> None:
    """out (rows, hidden): the function of x (rows, hidden), or of its first half times its second."""
    rows, hidden = out.shape
    kernel: Launch = _activate_kernel
    kernel[(rows, triton.cdiv(hidden, 1024))](
        x, out, hidden, x.stride(0), FUNCTION=function, GATED=gated, BLOCK=1024, DEPENDENT=dependent, num_warps=4,
        **dependent_option(dependent),
    )  # fmt: skip


def supports_dependent_launch(device: torch.device) -> bool:
    """Whether kernels may begin while the one before them ends: from Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
