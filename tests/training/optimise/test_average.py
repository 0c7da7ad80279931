"""The average's closed form, its exchange with the model, and clipping."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vantage.errors import BadInput
from vantage.training.optimise import Average, clip


def net(dtype=torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(dtype)


@torch.no_grad()
def move(m: nn.Module, step: int) -> None:
    for p in m.parameters():
        p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(step), dtype=p.dtype))


def test_the_average_is_its_closed_form():
    m, n, d = net(), 7, 0.8
    averaged = Average(d).build(m)
    history = [[p.detach().clone() for p in m.parameters()]]
    for step in range(n):
        move(m, step)
        averaged.update()
        history.append([p.detach().clone() for p in m.parameters()])
    for i, value in enumerate(averaged.state_tensors().values()):
        wanted = d**n * history[0][i] + sum((1 - d) * d ** (n - t) * history[t][i] for t in range(1, n + 1))
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-14)


def test_swap_gives_the_averages_and_takes_them_back_even_after_an_error():
    m = net()
    averaged = Average(0.5).build(m)
    move(m, 0)
    averaged.update()
    own = [p.detach().clone() for p in m.parameters()]
    with averaged.swap():
        for p, average in zip(m.parameters(), averaged.state_tensors().values(), strict=True):
            assert torch.equal(p, average)
            assert p.requires_grad
        for what in (averaged.update, averaged.swap().__enter__):
            with pytest.raises(BadInput, match="inside swap"):
                what()
    assert all(torch.equal(p, q) for p, q in zip(m.parameters(), own, strict=True))
    with pytest.raises(RuntimeError, match="out"), averaged.swap():
        raise RuntimeError("out")
    assert all(torch.equal(p, q) for p, q in zip(m.parameters(), own, strict=True))
    averaged.update()


def test_small_steps_are_not_lost_in_half_precision_and_frozen_parameters_are_left_out():
    m = net(torch.bfloat16)
    m[0].requires_grad_(False)
    averaged = Average(0.999).build(m)
    assert set(averaged.state_tensors()) == {"1.weight", "1.bias"}
    start = averaged.state_tensors()["1.bias"].clone()
    assert start.dtype == torch.float32
    with torch.no_grad():
        m[1].bias.add_(1)
    for _ in range(10):
        averaged.update()
    gone = (averaged.state_tensors()["1.bias"] - start) / (m[1].bias.float() - start)
    torch.testing.assert_close(gone, torch.full_like(gone, 1 - 0.999**10), rtol=1e-3, atol=0)


def test_state_goes_by_name_and_is_the_tensors_themselves():
    m = net()
    averaged = Average(0.9).build(m)
    kept = {name: t.clone() for name, t in averaged.state_tensors().items()}
    assert set(kept) == {name for name, _ in m.named_parameters()}
    move(m, 1)
    averaged.update()
    for name, value in averaged.state_tensors().items():  # as a checkpoint is read
        value.copy_(kept[name])
    averaged.take()
    assert all(torch.equal(p, kept[name].to(p.dtype)) for name, p in m.named_parameters())


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_that_cannot_be(decay):
    with pytest.raises(BadInput):
        Average(decay)


def test_clip():
    m = net()
    m(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    grads = [p.grad.clone() for p in m.parameters()]
    norm = torch.cat([g.flatten() for g in grads]).norm()
    assert clip(m.parameters(), None) == pytest.approx(float(norm))
    assert clip(m.parameters(), 2 * float(norm)) == pytest.approx(float(norm))
    assert all(torch.equal(p.grad, g) for p, g in zip(m.parameters(), grads, strict=True))
    assert clip(m.parameters(), float(norm) / 4) == pytest.approx(float(norm))
    for p, g in zip(m.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, g / 4, rtol=1e-5, atol=0)
    with pytest.raises(BadInput, match="positive"):
        clip(m.parameters(), 0.0)
