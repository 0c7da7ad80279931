"""Attention inside an RNN encoder-decoder."""

import pytest
import torch

from tests.attention.helpers import F64, check_gradients, sharpen, vectors
from vantage.attention import Additive, Dot, General, RecurrentAttention


def made(score):
    return sharpen(RecurrentAttention(score).to(F64))


def scores_of(kind):
    """(state width, key width, module)"""
    return {"dot": (3, 3, Dot()), "general": (3, 5, General(3, 5)), "additive": (3, 5, Additive(3, 5, 4))}[kind]


KINDS = pytest.mark.parametrize("kind", ["dot", "general", "additive"])


def test_dot_is_the_product():
    score = Dot()(torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 4.0], [0.0, 1.0]]]))
    assert score.tolist() == [[11.0, 2.0]]


def test_general_maps_the_key():
    score = General(2, 3)
    with torch.no_grad():
        score.map.weight.copy_(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]))
    got = score(torch.tensor([[10.0, 1.0]]), torch.tensor([[[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]]))
    assert got.tolist() == [[33.0, 20.0]]
    assert score.map.bias is None


def test_additive_is_a_small_network():
    score = Additive(1, 1, 2)
    with torch.no_grad():
        score.state.weight.copy_(torch.tensor([[1.0], [2.0]]))
        score.key.weight.copy_(torch.tensor([[0.5], [-1.0]]))
        score.out.weight.copy_(torch.tensor([[1.0, 3.0]]))
    got = score(torch.tensor([[0.3]]), torch.tensor([[[0.2], [0.9]]]))
    wanted = [torch.tanh(torch.tensor(0.3 + 0.5 * h)) + 3 * torch.tanh(torch.tensor(0.6 - h)) for h in (0.2, 0.9)]
    torch.testing.assert_close(got[0], torch.stack(wanted))


@KINDS
def test_the_context_is_the_weighted_sum(kind):
    D, K, score = scores_of(kind)
    module, s, h = made(score), vectors(2, D), vectors(2, 4, K, seed=1)
    context, weights = module(s, h)
    torch.testing.assert_close(weights, module.score(s, h).softmax(-1))
    torch.testing.assert_close(context, (weights[..., None] * h).sum(1))
    assert context.shape == (2, K)


@KINDS
def test_many_states_at_once_are_each_alone(kind):
    D, K, score = scores_of(kind)
    module, s, h = made(score), vectors(2, 3, D), vectors(2, 4, K, seed=1)
    filled = torch.tensor([[True, True, True, False], [True, True, False, False]])
    context, weights = module(s, h, filled)
    assert context.shape == (2, 3, K)
    for t in range(3):
        alone = module(s[:, t], h, filled)
        torch.testing.assert_close(context[:, t], alone[0])
        torch.testing.assert_close(weights[:, t], alone[1])


@KINDS
def test_keys_that_were_mapped_before_give_the_same(kind):
    D, K, score = scores_of(kind)
    module, s, h = made(score), vectors(2, D), vectors(2, 4, K, seed=1)
    context, weights = module(s, h, None, module.score.mapped(h))
    assert torch.equal(context, module(s, h)[0])
    assert torch.equal(weights, module(s, h)[1])


@KINDS
def test_padding_is_not_seen_and_padding_alone_gives_0(kind):
    D, K, score = scores_of(kind)
    module, s, h = made(score), vectors(3, D), vectors(3, 4, K, seed=1)
    filled = torch.tensor([[True, True, False, False], [True] * 4, [False] * 4])
    context, weights = module(s, h, filled)
    alone, some = module(s[:1], h[:1, :2])
    torch.testing.assert_close(context[:1], alone)
    torch.testing.assert_close(weights[:1, :2], some)
    torch.testing.assert_close(context[1:2], module(s[1:2], h[1:2])[0])
    assert (weights[0, 2:] == 0).all()
    assert (weights[2] == 0).all()
    assert (context[2] == 0).all()


@KINDS
def test_gradcheck(kind):
    D, K, score = scores_of(kind)
    filled = torch.tensor([[True, True, False], [True, True, True]])
    check_gradients(made(score), lambda m, s, h: m(s, h, filled), vectors(2, D), vectors(2, 3, K, seed=1))


def test_gradients_of_a_row_of_padding_are_not_nan():
    s, h = vectors(2, 3).requires_grad_(), vectors(2, 4, 3, seed=1).requires_grad_()
    made(Dot())(s, h, torch.tensor([[True] * 4, [False] * 4]))[0].sum().backward()
    assert s.grad is not None
    assert h.grad is not None
    assert s.grad.isfinite().all()
    assert h.grad.isfinite().all()
