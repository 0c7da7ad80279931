"""RoPE on a GPU in half precision, in one pass over queries, keys or a gradient.

torch's own operators take three passes, and are slow ones over what a projection or an attention hands on in strides.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.position.rope import in_passes, rotate_by

Kernel = Any  # triton's: indexed by its grid, then called
ROWS = 32  # positions of one head


@triton.jit
def turn(
    x, cos, sin, turned, heads, length, half, xb, xh, xt, mb, mh, mt, cb, ct, BACK: tl.constexpr,
    ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Some positions of one head: both halves are read once, and each is written with its partner's share."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // heads, row % heads
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, HALF)
    inside = (t < length)[:, None] & (k < half)[None, :]
    at = batch * xb + head * xh + t[:, None] * xt + k[None, :]
    place = batch * cb + t[:, None] * ct + k[None, :]
    a = tl.load(x + at, mask=inside).to(tl.float32)
    b = tl.load(x + at + half, mask=inside).to(tl.float32)
    cos_a = tl.load(cos + place, mask=inside).to(tl.float32)
    cos_b = tl.load(cos + place + half, mask=inside).to(tl.float32)
    sin_a = tl.load(sin + place, mask=inside).to(tl.float32)
    sin_b = tl.load(sin + place + half, mask=inside).to(tl.float32)
    if BACK:
        sin_a, sin_b = sin_b, sin_a
    to = batch * mb + head * mh + t[:, None] * mt + k[None, :]
    tl.store(turned + to, (a * cos_a + b * sin_a).to(turned.dtype.element_ty), mask=inside)
    tl.store(turned + to + half, (b * cos_b + a * sin_b).to(turned.dtype.element_ty), mask=inside)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, H, T, d) turned by cos and sin (1 or B, 1, T, d), whose last dimension is dense."""
    return _in_one_pass(x, cos, sin, back=False) if one_pass_does(x) else rotate_by(x, cos, sin, "halves")


def turned_back(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of x from that of what was turned."""
    return _in_one_pass(grad, cos, sin, back=True) if one_pass_does(grad) else in_passes(grad, cos, sin)


def one_pass_does(x: Tensor) -> bool:
    """In full precision the kernel would lose some of it; it does not count the dimensions of many models at once."""
    return x.element_size() == 2 and x.dim() == 4 and x.stride(-1) == 1


def _in_one_pass(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
    out = torch.empty_like(x)
    rows, heads, length, d = x.shape
    own = cos.stride(0) if len(cos) > 1 else 0
    kernel: Kernel = turn
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        kernel[rows * heads, triton.cdiv(length, ROWS)](  # the first may be large, the second not above 65,535
            x, cos, sin, out, heads, length, d // 2, *x.stride()[:3], *out.stride()[:3], own, cos.stride(2),
            BACK=back, ROWS=ROWS, HALF=triton.next_power_of_2(d // 2), num_warps=4,
        )  # fmt: skip
    return out
