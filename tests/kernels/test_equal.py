"""Every kernel against the reference, and the reference against loops over single numbers."""

import pytest
import torch
from hypothesis import given, settings

from tests.kernels.helpers import F64, by_hand, call, calls, normal
from tests.sampling import examples
from tests.spec.helpers import CAUSAL, EVERYTHING, both, prefix, window
from vantage.kernels import kernel_named
from vantage.spec.normalisers import Argmax, Softmax
from vantage.spec.parts import Dense, View
from vantage.spec.positions import EMPTY, Positions

REFERENCE, SDPA, FLEX = kernel_named("reference"), kernel_named("sdpa"), kernel_named("flex")


def close(a, b, dtype=F64):
    torch.testing.assert_close(a, b.to(dtype), rtol=0, atol=1e-10 if dtype == F64 else 3e-5)


@given(calls())
@settings(max_examples=examples(100), deadline=None)
def test_reference_is_attention(c):
    got = c.run(REFERENCE, weights=True)
    out, weights = by_hand(c)
    if isinstance(c.need.normalise, Argmax):  # a tie by rounding is no tie
        torch.testing.assert_close(got.weights.sum(-1), weights.sum(-1))
    close(got.out, out)
    close(got.weights, weights)


@given(calls())
@settings(max_examples=examples(100), deadline=None)
def test_sdpa_is_the_reference_or_refuses(c):
    wanted = c.run(REFERENCE).out
    if SDPA.refuses(c.need, c.q, c.view) is not None:
        assert c.need.softcap is not None or c.need.sinks is not None or isinstance(c.need.normalise, Argmax)
        return
    close(c.run(SDPA).out, wanted)
    close(c.to(torch.float32).run(SDPA).out, wanted, torch.float32)


@given(calls())
@settings(max_examples=30, deadline=None)
def test_flex_is_the_reference_or_refuses(c):
    wanted = c.run(REFERENCE, lse=True)
    if FLEX.refuses(c.need, c.q, c.view) is not None:
        assert isinstance(c.need.normalise, Argmax)
        return
    got = c.run(FLEX, lse=True)
    close(got.out, wanted.out)
    close(got.lse, wanted.lse)


def test_flex_in_float32():
    c = call(meant=both(CAUSAL, window(2)), softcap=1.5, sinks=normal(4, seed=5))
    close(c.to(torch.float32).run(FLEX).out, c.run(REFERENCE).out, torch.float32)
    assert c.run(FLEX).lse is None


@given(calls())
@settings(max_examples=examples(60), deadline=None)
def test_the_weights_shown_are_the_weights_used(c):
    got = c.run(REFERENCE, weights=True)
    v = c.view.v.repeat_interleave(c.q.shape[1] // c.view.v.shape[1], 1)
    close(got.weights @ v, got.out)
    assert (got.weights >= 0).all()
    assert (got.weights.sum(-1) <= 1 + 1e-12).all()
    assert torch.equal(c.run(REFERENCE).out, got.out)  # asking for them changes nothing
    assert c.run(REFERENCE).weights is None
    assert c.run(REFERENCE).lse is None


def test_float32_inputs_give_float32_and_half_is_computed_in_float32():
    c = call()
    wanted = c.run(REFERENCE).out
    for dtype, atol in ((torch.float32, 1e-6), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)):
        got = c.to(dtype).run(REFERENCE).out
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted.to(dtype), rtol=0, atol=atol)
    half = c.to(torch.float16)
    wide = half.to(torch.float32)
    assert torch.equal(half.run(REFERENCE).out, wide.run(REFERENCE).out.half())  # rounded once, at the end


# ---- rows with nothing to see


def blind(dtype=F64, **need):
    """Row 0 has an empty query and a query before all keys; row 1 has no key at all."""
    q_pos = Positions.of(torch.tensor([[0, EMPTY, 7], [0, 1, 2]]))
    k_pos = Positions.of(torch.tensor([[5, 6, EMPTY], [EMPTY, EMPTY, EMPTY]]))
    return call(2, 1, 2, 3, 3, meant=CAUSAL, q_pos=q_pos, k_pos=k_pos, **need).to(dtype)


SEES = torch.tensor([[False, False, True], [False, False, False]])


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("biased", [False, True])
def test_a_row_with_nothing_to_see_gives_exactly_0(kernel, dtype, biased):
    c = blind(dtype, bias=Dense(normal(2, 2, 3, 3, seed=9, dtype=dtype)) if biased else None)
    out = c.run(kernel_named(kernel)).out.transpose(1, 2)
    assert (out[~SEES] == 0).all()
    assert (out[SEES] != 0).all()


@pytest.mark.parametrize("kernel", ["reference", "flex"])
@pytest.mark.parametrize("sinks", [False, True])
def test_a_row_with_nothing_to_see_gives_0_under_everything_else(kernel, sinks):
    need = {"softcap": 2.0, "normalise": Softmax(0.5), "sinks": normal(2, seed=3) if sinks else None}
    got = blind(**need).run(kernel_named(kernel), lse=True)
    assert (got.out.transpose(1, 2)[~SEES] == 0).all()
    lse = got.lse.transpose(1, 2)[~SEES]
    close(lse, (need["sinks"] / 0.5).expand_as(lse) if sinks else torch.full_like(lse, -torch.inf))


@pytest.mark.parametrize("normalise", [Softmax(), Argmax()])
def test_a_row_with_nothing_to_see_has_no_weights(normalise):
    weights = blind(normalise=normalise).run(REFERENCE, weights=True).weights.transpose(1, 2)
    assert (weights[~SEES] == 0).all()
    close(weights[SEES].sum(-1), torch.ones(1, 2, dtype=F64))


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_of_rows_with_nothing_to_see_are_0_and_not_nan(kernel, dtype):
    c = blind(dtype)
    leaves = [t.requires_grad_() for t in (c.q, c.view.k, c.view.v)]
    (1e4 * c.run(kernel_named(kernel)).out).sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in leaves)
    assert (c.q.grad.transpose(1, 2)[~SEES] == 0).all()
    assert (c.q.grad.transpose(1, 2)[SEES] != 0).any()
    assert (c.view.k.grad[1] == 0).all()
    assert (c.view.v.grad[0, :, 2] == 0).all()


# ---- one query


@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("kind", ["plain", "masked", "biased", "biased and masked", "one bias for all rows"])
@pytest.mark.parametrize("kernel", ["sdpa", "flex"])
def test_a_decode_step(G, kind, kernel):
    k_pos = Positions.of(torch.tensor([[0, 1, 2, EMPTY], [4, 5, 6, 7]])) if "masked" in kind else Positions.arange(2, 4)
    bias = None
    if "bias" in kind:
        bias = Dense(normal(1 if "all" in kind else 2, 4, 1, 4, seed=8))
    q_pos = Positions.rows([1, 1], [3, 6])
    c = call(2, G, 4 // G, 1, 4, meant=both(CAUSAL, window(4)), q_pos=q_pos, k_pos=k_pos, bias=bias)
    close(c.run(kernel_named(kernel)).out, by_hand(c)[0])


def test_heads_share_keys_in_order():
    """Heads 0 and 1 read key/value head 0, heads 2 and 3 read head 1."""
    c = call(1, 2, 2, 1, 1, d_v=1)
    c.view.v.copy_(torch.tensor([10.0, 20.0]).view(1, 2, 1, 1))
    for kernel in (REFERENCE, SDPA, FLEX):
        assert c.run(kernel).out.flatten().tolist() == pytest.approx([10, 10, 20, 20])


# ---- the order of the steps


def test_softcap_acts_before_the_bias_and_temperature_after():
    c = call(
        1, 1, 1, 1, 2, 1, 1, scale=0.5, softcap=2.0, normalise=Softmax(4.0), bias=Dense(torch.tensor([[[[0.0, 3.0]]]]))
    )
    c.q.fill_(2.0)
    c.view.k.copy_(torch.tensor([1.0, 3.0]).view(1, 1, 2, 1))
    scores = torch.tensor([2 * torch.tanh(torch.tensor(0.5)), 2 * torch.tanh(torch.tensor(1.5)) + 3.0], dtype=F64)
    wanted = (scores / 4).softmax(-1)
    torch.testing.assert_close(c.run(REFERENCE, weights=True).weights.flatten(), wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(c.run(FLEX).out.item(), float(wanted @ c.view.v.flatten()), rtol=1e-6, atol=0)


def test_lse_is_the_log_of_the_sum_of_exponentials():
    c = call(meant=both(CAUSAL, prefix(9)), normalise=Softmax(2.0), sinks=normal(4, seed=5))
    scores = (c.q @ c.view.k.repeat_interleave(2, 1).mT) * c.need.scale / 2.0
    seen = torch.tensor(5 - 3) + torch.arange(3)[:, None] >= torch.arange(5)
    scores = torch.cat(
        [scores.masked_fill(~seen, -torch.inf), (c.need.sinks / 2.0).view(1, 4, 1, 1).expand(2, 4, 3, 1)], -1
    )
    wanted = scores.logsumexp(-1)
    close(c.run(REFERENCE, lse=True).lse, wanted)
    close(c.run(FLEX, lse=True).lse, wanted)


class Summed:
    """A value bias: the weights summed into the first dimension."""

    def at(self, weights, q_pos, k_pos):
        assert q_pos.shape[1] == weights.shape[2]
        assert k_pos.shape[1] == weights.shape[3]
        return weights.cumsum(-1)[..., -1:].expand(-1, -1, -1, 6)


def test_a_value_bias_reads_the_weights_after_dropout():
    c = call(meant=EVERYTHING)
    plain = c.run(REFERENCE)
    close(c.run(REFERENCE, value_bias=Summed()).out, plain.out + 1)
    torch.manual_seed(0)
    dropped = c.run(REFERENCE, dropout=0.5, value_bias=Summed(), weights=True)
    torch.manual_seed(0)
    used = torch.nn.functional.dropout(dropped.weights, 0.5)
    close(dropped.weights, c.run(REFERENCE, weights=True).weights)  # shown before dropout
    close(dropped.out, used @ c.view.v.repeat_interleave(2, 1) + used.sum(-1, keepdim=True))


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_dropout_keeps_the_mean(kernel):
    c = call(1, 1, 1, 1, 4, d_v=1)
    torch.manual_seed(0)
    draws = torch.stack([c.run(kernel_named(kernel), dropout=0.25).out for _ in range(4000)])
    assert draws.std() > 0.1
    spread = float(draws.std()) / 4000**0.5
    assert abs(float(draws.mean()) - float(c.run(kernel_named(kernel)).out)) < 4 * spread


def test_views_need_not_be_contiguous():
    c = call(2, 2, 2, 3, 5)
    k = c.view.k.transpose(1, 2).contiguous().transpose(1, 2)
    v = torch.cat([c.view.v, c.view.v], -1)[..., :6]
    strided = View(k, v, c.view.pos)
    for kernel in (REFERENCE, SDPA, FLEX):
        close(kernel(c.q.mT.contiguous().mT, strided, c.pos.against(c.view.pos), c.need).out, c.run(kernel).out)
