"""The cross-entropy of half-precision logits on a GPU, and its gradient, in one reading of the logits each.

With a vocabulary of 50,000 the logits are the largest tensor of a training step by far. torch's own way reads them
more often, makes a float32 copy when it is not compiled, and took twice the time on an H200 when it was.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Kernel = Any  # triton's: indexed by its grid, then called


@triton.jit
def _forward(logits, targets, losses, sums, vocab, BLOCK: tl.constexpr):
    """One row: the log of the sum of exponentials, and the loss. A target below 0 is not asked for."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab
    offsets = tl.arange(0, BLOCK)
    top, total = -float("inf"), 0.0
    for start in range(0, vocab, BLOCK):
        at = start + offsets
        x = tl.load(logits + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
        top = higher
    log_sum = top + tl.log(total)
    target = tl.load(targets + row)
    counts = target >= 0
    score = tl.load(logits + tl.where(counts, target, 0)).to(tl.float32)
    tl.store(sums + row, log_sum)
    tl.store(losses + row, tl.where(counts, log_sum - score, 0.0))


@triton.jit
def _backward(logits, targets, sums, scale, grads, vocab, BLOCK: tl.constexpr):
    """A block of one row: the probabilities less the target, times what came from above."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    x = tl.load(logits + row * vocab + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.load(sums + row))
    grad = tl.where(at == target, p - 1.0, p) * tl.where(target >= 0, tl.load(scale), 0.0)
    tl.store(grads + row * vocab + at, grad.to(grads.dtype.element_ty), mask=at < vocab)


@torch.library.custom_op("vantage::cross_entropy", mutates_args=())
def _losses(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    rows, vocab = logits_NV.shape
    losses, sums = (torch.empty(rows, device=logits_NV.device) for _ in range(2))
    kernel: Kernel = _forward
    with torch.cuda.device(logits_NV.device):
        kernel[(rows,)](logits_NV, targets_N, losses, sums, vocab, BLOCK=4096, num_warps=4)
    return losses, sums


@_losses.register_fake
def _(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    losses = logits_NV.new_empty(len(logits_NV), dtype=torch.float32)
    return losses, torch.empty_like(losses)


@torch.library.custom_op("vantage::cross_entropy_backward", mutates_args=())
def _grads(logits_NV: Tensor, targets_N: Tensor, sums_N: Tensor, scale: Tensor) -> Tensor:
    rows, vocab = logits_NV.shape
    grads = torch.empty_like(logits_NV)
    kernel: Kernel = _backward
    grid = rows, triton.cdiv(vocab, 2048)
    with torch.cuda.device(logits_NV.device):
        kernel[grid](logits_NV, targets_N, sums_N, scale, grads, vocab, BLOCK=2048, num_warps=4)
    return grads


@_grads.register_fake
def _(logits_NV: Tensor, targets_N: Tensor, sums_N: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(logits_NV)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        losses, sums = _losses(logits_NV, targets_N)
        ctx.save_for_backward(logits_NV, targets_N, sums)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _grads(*ctx.saved_tensors, grads[0]), None


def cross_entropy(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """The sum over all targets that are not negative, in float32."""
    return _CrossEntropy.apply(logits_NV.contiguous(), targets_N.contiguous())
