"""The cross-entropy that reads half-precision logits once, against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vantage.training.batch import IGNORE
from vantage.training.learners import losses

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("vocab", [7, 4096, 50_304])
@pytest.mark.parametrize("compiled", [False, True])
def test_loss_and_gradient_are_torchs_own(vocab: int, compiled: bool):
    torch.manual_seed(0)
    logits = (4 * torch.randn(3, 50, vocab, device="cuda")).to(torch.bfloat16).requires_grad_()
    targets = torch.randint(vocab, (3, 50), device="cuda")
    targets[0, :9] = IGNORE
    run = torch.compile(losses) if compiled else losses
    loss = run(logits, targets)
    (loss / 7).backward()
    wide = logits.detach().double().requires_grad_()
    wanted = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    (wanted / 7).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=1e-6)
    assert logits.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(logits.grad.double(), wide.grad, rtol=2**-7, atol=1e-6)


@needs_gpu
def test_smoothing_and_float32_go_torchs_way():
    logits = torch.randn(5, 11, device="cuda")
    targets = torch.randint(11, (5,), device="cuda")
    for given in (logits, logits.bfloat16()):
        wanted = F.cross_entropy(given.float(), targets, reduction="sum", label_smoothing=0.1)
        torch.testing.assert_close(losses(given, targets, 0.1), wanted)
