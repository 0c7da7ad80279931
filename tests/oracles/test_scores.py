"""Attention itself against torch's and transformers' functions."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_attention
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_attention

from tests.attention.helpers import attention, run, vectors
from tests.kernels.helpers import call, normal
from tests.spec.helpers import CAUSAL, EVERYTHING
from vantage.attention import GroupedQuery
from vantage.kernels import kernel_named
from vantage.spec.masks import Causal, Everything
from vantage.spec.parts import Dense, EncoderOutput
from vantage.spec.positions import Positions

KINDS = pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])


def square(**need):
    return call(2, 2, 2, 5, 5, q_pos=Positions.arange(2, 5), k_pos=Positions.arange(2, 5), **need)


@KINDS
@pytest.mark.parametrize("causal", [True, False])
def test_torch_scaled_dot_product_attention(kernel, causal):
    c = square(meant=CAUSAL if causal else EVERYTHING)
    wanted = F.scaled_dot_product_attention(
        c.q, c.view.k, c.view.v, is_causal=causal, scale=c.need.scale, enable_gqa=True
    )
    torch.testing.assert_close(c.run(kernel_named(kernel)).out, wanted, rtol=0, atol=1e-12)


@KINDS
def test_torch_scaled_dot_product_attention_with_a_bias(kernel):
    bias = normal(2, 4, 5, 5, seed=7)
    c = square(meant=EVERYTHING, bias=Dense(bias))
    wanted = F.scaled_dot_product_attention(c.q, c.view.k, c.view.v, bias, scale=c.need.scale, enable_gqa=True)
    torch.testing.assert_close(c.run(kernel_named(kernel)).out, wanted, rtol=0, atol=1e-12)


def test_torch_multihead_attention():
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    config = GroupedQuery(2, bias=True, out_bias=True)
    ours, x = attention(config, 8), vectors(2, 5, 8)
    _copy_multihead(theirs, ours)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    seen = []
    with torch.no_grad():
        wanted, weights = theirs(x, x, x, attn_mask=mask, average_attn_weights=False)
        got = run(ours, x, watch=lambda site, i, view, need, done: seen.append(done.weights))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(seen[0], weights, rtol=0, atol=1e-12)


def test_torch_multihead_attention_with_padding():
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    ours, x = attention(GroupedQuery(2, bias=True, out_bias=True), 8, Everything()), vectors(2, 5, 8)
    _copy_multihead(theirs, ours)
    real = torch.arange(5) < torch.tensor([[3], [5]])
    with torch.no_grad():
        wanted, _ = theirs(x, x, x, key_padding_mask=~real)
        got = run(ours, x, pos=Positions.from_mask(real))
    torch.testing.assert_close(got[real], wanted[real], rtol=0, atol=1e-12)


def test_torch_multihead_attention_across():
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    ours = attention(GroupedQuery(2, bias=True, out_bias=True), 8, cross=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.kv.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.kv.bias]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
        x, source = vectors(2, 3, 8), vectors(2, 6, 8, seed=1)
        wanted, _ = theirs(x, source, source)
        got = run(ours, x, memory=EncoderOutput(source, Positions.arange(2, 6)))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def _copy_multihead(theirs, ours):
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias)
        theirs.out_proj.load_state_dict(ours.out.state_dict())


def additive(T):
    return torch.full((T, T), -torch.inf, dtype=torch.float64).triu(1)


@pytest.mark.parametrize("kernel", ["reference", "flex"])
def test_sinks_are_those_of_gpt_oss(kernel):
    c = square(meant=CAUSAL, sinks=normal(4, seed=3))
    module = SimpleNamespace(num_key_value_groups=2, sinks=c.need.sinks, training=False)
    wanted, weights = gpt_oss_attention(module, c.q, c.view.k, c.view.v, additive(5), c.need.scale)
    torch.testing.assert_close(c.run(kernel_named(kernel)).out, wanted.transpose(1, 2), rtol=0, atol=1e-12)
    if kernel == "reference":
        torch.testing.assert_close(c.run(kernel_named(kernel), weights=True).weights, weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["reference", "flex"])
def test_softcap_is_that_of_gemma_2(kernel):
    c = square(meant=CAUSAL, softcap=1.5)
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    scaling = {"scaling": c.need.scale, "softcap": 1.5}
    wanted, _ = gemma2_attention(module, c.q, c.view.k, c.view.v, additive(5), **scaling)  # it rounds to float32
    torch.testing.assert_close(c.run(kernel_named(kernel)).out, wanted.transpose(1, 2), rtol=0, atol=1e-6)


def test_causal_is_the_lower_triangle():
    pos = Positions.arange(1, 4)
    assert torch.equal(Causal()(*pos.against(pos).places())[0, 0], torch.ones(4, 4).tril().bool())
