"""RoPE's way back on a GPU in half precision, in one pass over the gradient.

torch's own operators take three passes, and are slow ones over the strided gradient that an attention hands back.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports] (comes with torch for CUDA)
import triton.language as tl  # pyright: ignore[reportMissingImports] (the same)
from torch import Tensor

from vantage.position.rope import in_passes

Kernel = Any  # triton's: indexed by its grid, then called
ROWS = 32  # positions of one head


@triton.jit
def _turned_back(
    grad, cos, sin, turned, heads, length, half, gb, gh, gt, mb, mh, mt, cb, ct, ROWS: tl.constexpr, HALF: tl.constexpr
):
    """Some positions of one head: both halves are read once, and each is written with its partner's share."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // heads, row % heads
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, HALF)
    inside = (t < length)[:, None] & (k < half)[None, :]
    at = batch * gb + head * gh + t[:, None] * gt + k[None, :]
    turn = batch * cb + t[:, None] * ct + k[None, :]
    a = tl.load(grad + at, mask=inside).to(tl.float32)
    b = tl.load(grad + at + half, mask=inside).to(tl.float32)
    cos_a = tl.load(cos + turn, mask=inside).to(tl.float32)
    cos_b = tl.load(cos + turn + half, mask=inside).to(tl.float32)
    sin_a = tl.load(sin + turn, mask=inside).to(tl.float32)
    sin_b = tl.load(sin + turn + half, mask=inside).to(tl.float32)
    to = batch * mb + head * mh + t[:, None] * mt + k[None, :]
    tl.store(turned + to, (a * cos_a + b * sin_b).to(turned.dtype.element_ty), mask=inside)
    tl.store(turned + to + half, (b * cos_b + a * sin_a).to(turned.dtype.element_ty), mask=inside)


def turned_back(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient (B, H, T, d) of what was turned by cos and sin (1 or B, 1, T, d), whose last dimension is dense.

    In full precision the kernel would lose some of it, and the dimensions of many models at once it does not count.
    """
    if grad.element_size() != 2 or grad.dim() != 4 or grad.stride(-1) != 1:
        return in_passes(grad, cos, sin)
    turned = torch.empty_like(grad)
    rows, heads, length, d = grad.shape
    own = cos.stride(0) if len(cos) > 1 else 0
    kernel: Kernel = _turned_back
    with torch.cuda.device(grad.device):
        kernel[rows * heads, triton.cdiv(length, ROWS)](  # the first may be large, the second not above 65,535
            grad, cos, sin, turned, heads, length, d // 2, *grad.stride()[:3], *turned.stride()[:3], own, cos.stride(2),
            ROWS=ROWS, HALF=triton.next_power_of_2(d // 2), num_warps=4,
        )  # fmt: skip
    return turned
