"""Feed-forward layers and mixtures of experts."""

import math

import pytest
import torch

from tests.attention.helpers import F64, check_gradients, sharpen, vectors
from vantage.errors import BadInput, Refused
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import ACTIVATIONS, FeedForward, named

FORMULAS = {
    "relu": lambda t: t * (t > 0),
    "gelu": lambda t: t * 0.5 * (1 + torch.erf(t / math.sqrt(2))),
    "gelu_tanh": lambda t: 0.5 * t * (1 + torch.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3))),
    "silu": lambda t: t / (1 + torch.exp(-t)),
    "quick_gelu": lambda t: t / (1 + torch.exp(-1.702 * t)),
}


def built(config, width=6):
    return sharpen(config.build(width).to(F64))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_plain(activation, bias):
    part, x = built(FeedForward(8, activation, gated=False, bias=bias)), vectors(2, 3, 6)
    b, c = (part.up.bias, part.down.bias) if bias else (0, 0)
    wanted = FORMULAS[activation](x @ part.up.weight.T + b) @ part.down.weight.T + c
    torch.testing.assert_close(part(x), wanted)
    assert (part.up.bias is not None) == (part.down.bias is not None) == bias


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated(activation):
    """down(f(gate(x)) · up(x)): the first half of the map is the gate."""
    part, x = built(FeedForward(8, activation)), vectors(2, 3, 6)
    gate, up = part.gate_up.weight[:8], part.gate_up.weight[8:]
    wanted = (FORMULAS[activation](x @ gate.T) * (x @ up.T)) @ part.down.weight.T
    torch.testing.assert_close(part(x), wanted)
    assert part.gate_up.bias is None
    assert part.down.bias is None


def test_sparse_gates():
    """A gate counts by what it is above the mean and so many deviations: 1.6449 of them for 95 %."""
    part, x = built(FeedForward(64, "gelu", sparsity=0.95)), vectors(2, 3, 6)
    gate, up = (x @ part.gate_up.weight.T).chunk(2, -1)
    cut = gate.mean(-1, keepdim=True) + 1.6448536269514722 * gate.std(-1, keepdim=True, unbiased=False)
    wanted = FORMULAS["gelu"]((gate - cut).clamp_min(0)) * up @ part.down.weight.T
    torch.testing.assert_close(part(x), wanted)
    assert 0 < ((gate - cut) > 0).double().mean() < 0.15
    plain = built(FeedForward(64, "gelu"))
    assert not torch.allclose(plain(x), part(x))
    with pytest.raises(Refused, match="no tensor parallel form"):
        FeedForward(64, sparsity=0.95).divided(2, 6)


def test_names():
    assert named("relu", 12) == FeedForward(48, "relu", gated=False, bias=True)
    assert named("gelu", 12) == FeedForward(48, "gelu", gated=False, bias=True)
    assert named("swiglu", 96) == FeedForward(256, "silu", gated=True, bias=False)
    assert named("geglu", 96) == FeedForward(256, "gelu", gated=True, bias=False)
    assert named("swiglu", 97).hidden == 320  # rounded up to whole tiles of 64
    assert named("swiglu", 96, 100).hidden == named("relu", 96, 100).hidden == 100
    for width in (96, 768, 4096):
        weights = 3 * width * named("swiglu", width).hidden
        assert weights == pytest.approx(8 * width**2, rel=0.1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: named("swish", 8), "no feed-forward layer is called 'swish'.* There are: swiglu, geglu, gelu, relu"),
        (lambda: FeedForward(8, "sigmoid"), "no activation is called 'sigmoid'. There are: relu"),
        (lambda: FeedForward(0), "hidden=0: a feed-forward layer needs at least 1"),
        (lambda: built(Experts(FeedForward(4), 3, TopK(4))), "4 of 3 experts: choose from 1 to 3"),
        (lambda: built(Experts(FeedForward(4), 3, TopK(0))), "0 of 3 experts"),
        (lambda: FeedForward(4, sparsity=1.0), "sparsity=1.0: use a share"),
        (lambda: FeedForward(4, sparsity=0.5, gated=False), "in a gated layer"),
        (lambda: Experts(FeedForward(4), 3, TopK(1), shared_gate=True), "there is none: give shared="),
        (lambda: TopK(1, score="tanh"), "score='tanh': use 'softmax' or 'sigmoid'"),
    ],
)
def test_what_cannot_be_is_refused(call, says):
    with pytest.raises(BadInput, match=says):
        call()


# ---- experts


def by_hand(part, x):
    """One token at a time."""
    c, out = part.router.config, torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            logits = part.router.linear.weight @ x[b, t]
            scores = logits.softmax(-1) if c.score == "softmax" else logits.sigmoid()
            best = scores.argsort(descending=True)[: c.k]
            total = scores[best].sum() if c.renormalise else 1.0
            out[b, t] = sum(scores[e] / total * part.experts[e](x[b, t]) for e in best.tolist())
            if part.shared is not None:
                out[b, t] += part.shared(x[b, t])
    return out


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("shared", [None, FeedForward(5)])
def test_experts(score, renormalise, top_k, shared):
    part = built(Experts(FeedForward(4), 4, TopK(top_k, score, renormalise), shared))
    x = vectors(2, 3, 6)
    with torch.no_grad():
        torch.testing.assert_close(part(x), by_hand(part, x))


def test_a_shared_expert_behind_a_gate():
    part, x = built(Experts(FeedForward(4), 4, TopK(2), FeedForward(5), shared_gate=True)), vectors(2, 3, 6)
    gate, shared = (x @ part.shared_gate.weight.T).sigmoid(), part.shared(x)
    with torch.no_grad():
        torch.testing.assert_close(part(x), by_hand(part, x) + (gate - 1) * shared)
        plain = Experts(FeedForward(4), 4, TopK(2), FeedForward(5)).build(6)
        assert part.operations(3) == plain.operations(3) + 2 * 3 * 6


def test_an_expert_that_nobody_chose_does_nothing():
    part, x = built(Experts(FeedForward(4), 8, TopK(1))), vectors(1, 2, 6)
    with torch.no_grad():
        torch.testing.assert_close(part(x), by_hand(part, x))
        _, chosen = part.router(x.flatten(0, 1))
        assert chosen.shape == (2, 1)
        assert len(chosen.unique()) < 8


def test_routing_weights_sum_to_1_where_asked():
    x = vectors(5, 6)
    weights, chosen = built(Experts(FeedForward(4), 5, TopK(3))).router(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, dtype=F64))
    assert all(len(set(row.tolist())) == 3 for row in chosen)
    raw, _ = built(Experts(FeedForward(4), 5, TopK(3, renormalise=False))).router(x)
    assert (raw.sum(-1) < 1).all()


def test_a_router_may_have_a_bias():
    """GPT-OSS: the softmax is over the chosen scores, which is the same as renormalised over all."""
    router, x = built(Experts(FeedForward(4), 5, TopK(2, bias=True))).router, vectors(7, 6)
    weights, chosen = router(x)
    best, wanted = (x @ router.linear.weight.T + router.linear.bias).topk(2)
    assert torch.equal(chosen, wanted)
    torch.testing.assert_close(weights, best.softmax(-1))
    assert built(Experts(FeedForward(4), 5, TopK(2))).router.linear.bias is None


def test_half_precision_routes_in_float32():
    part = built(Experts(FeedForward(4), 4, TopK(2))).to(torch.bfloat16)
    x = vectors(3, 6, dtype=torch.bfloat16)
    weights, _ = part.router(x)
    assert weights.dtype == torch.bfloat16
    wanted, _ = part.router.linear(x).float().softmax(-1).topk(2)
    torch.testing.assert_close(weights, (wanted / wanted.sum(-1, keepdim=True)).bfloat16())


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "relu"])
@pytest.mark.parametrize("gated", [True, False])
def test_gradcheck(activation, gated):
    check_gradients(built(FeedForward(3, activation, gated, bias=True), 3), lambda m, x: m(x), vectors(2, 3))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalise", [True, False])
def test_gradcheck_of_experts(score, renormalise):
    config = Experts(FeedForward(2), 3, TopK(2, score, renormalise), shared=FeedForward(2))
    check_gradients(built(config, 3), lambda m, x: m(x), vectors(1, 3, 3))
