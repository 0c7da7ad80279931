"""KDA: the worked number by channel, transformers' functions and layer, steps, gradients and costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import (
    KimiLinearDeltaAttention,
    chunk_kimi_delta_attention,
    recurrent_kimi_delta_attention,
)

import vantage as vt
from tests.attention.helpers import F64, context, vectors
from vantage.attention.delta_rule import delta_rule
from vantage.cache.build import no_caches
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.spec.positions import Positions


def test_the_worked_number_in_each_channel():
    """Keys of one channel each: e^g = β = ½ gives 1, 2.25, 3.5625; without decay the same values give 1, 2.5, 4.25."""
    v = torch.tensor([2.0, 4, 6], dtype=F64).view(1, 3, 1, 1)
    g = torch.tensor([0.5, 1.0], dtype=F64).log().expand(1, 3, 1, 2)
    beta, empty = torch.full((1, 3, 1), 0.5, dtype=F64), torch.zeros(1, 1, 2, 1, dtype=F64)
    for channel, wanted in ((0, [1, 2.25, 3.5625]), (1, [1, 2.5, 4.25])):
        one = torch.zeros(1, 3, 1, 2, dtype=F64)
        one[..., channel] = 1
        out, _ = delta_rule(one, one, v, g, beta, empty, Positions.arange(1, 3), ())
        torch.testing.assert_close(out.flatten() * 2**0.5, torch.tensor(wanted, dtype=F64))


def test_equal_decays_are_the_gated_delta_rule():
    q, k, v = (vectors(2, 5, 3, 4, seed=i) for i in range(3))
    g, beta = -vectors(2, 5, 3, seed=3).abs(), vectors(2, 5, 3, seed=4).sigmoid()
    start, pos = vectors(2, 3, 4, 4, seed=5), Positions.packed([[2, 3], [5]])
    one, _ = delta_rule(q, k, v, g, beta, start, pos, ())
    each, _ = delta_rule(q, k, v, g[..., None].expand(-1, -1, -1, 4), beta, start, pos, ())
    torch.testing.assert_close(each, one)


@pytest.mark.parametrize("theirs", [recurrent_kimi_delta_attention, chunk_kimi_delta_attention])
def test_transformers_rule(theirs):
    B, T, H, d, e = 2, 9, 3, 4, 4
    q, k, v = (vectors(B, T, H, n, seed=i).float() for i, n in enumerate((d, d, e)))
    g, beta = -vectors(B, T, H, d, seed=3).abs().float(), vectors(B, T, H, seed=4).sigmoid().float()
    start = vectors(B, H, d, e, seed=5).float()
    want, last = theirs(q, k, v, g=g, beta=beta, initial_state=start, output_final_state=True)
    out, states = delta_rule(q, k, v, g, beta, start, Positions.arange(B, T), (T - 1,))
    torch.testing.assert_close(out, want, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(states[0], last, atol=2e-5, rtol=2e-4)


def test_kimi_linears_layer():
    H, d, D, T = 3, 4, 16, 7
    config = KimiLinearConfig(
        hidden_size=D,
        linear_num_heads=H,
        linear_head_dim=d,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        mlp_layer_types=["dense"],
    )
    theirs = KimiLinearDeltaAttention(config, 0).eval()
    layer = vt.KimiDelta(H, vt.RMSNorm(eps=config.rms_norm_eps), head_dim=d, taps=config.linear_conv_kernel_dim)
    model = vt.build(vt.decoder(vocab=9, width=D, layers=1, attention=layer, position="none")).eval()
    ours = model.blocks[0].sublayers[0]
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.5)
        ours.qkv.weight.copy_(torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight]))
        ours.beta.weight.copy_(theirs.b_proj.weight)
        ours.low.weight.copy_(torch.cat([theirs.forget_gate.f_a_proj.weight, theirs.g_a_proj.weight]))
        ours.decay.weight.copy_(theirs.forget_gate.f_b_proj.weight)
        ours.gate.weight.copy_(theirs.g_b_proj.weight)
        ours.conv.weight.copy_(theirs.conv1d.weight[:, 0])
        ours.dt_bias.copy_(theirs.forget_gate.dt_bias)
        ours.A_log.copy_(theirs.forget_gate.A_log.flatten())
        ours.norm.weight.copy_(theirs.o_norm.weight)
        ours.out.weight.copy_(theirs.o_proj.weight)
        x = vectors(2, T, D).float()
        got = ours(x, context(Positions.arange(2, T), caches=no_caches(model.spec, None, model.dtype)))
        torch.testing.assert_close(got, theirs(x), atol=2e-5, rtol=2e-4)


def test_fresh_heads():
    """Rates from 1 to 16, as in Mamba."""
    fresh = vt.KimiDelta(500, vt.RMSNorm(), head_dim=1)
    layer = vt.build(vt.decoder(vocab=9, width=2, layers=1, attention=fresh, position="none")).blocks[0].sublayers[0]
    rates = layer.A_log.detach().exp()
    assert 1 <= float(rates.min()) < 1.5
    assert 15.5 < float(rates.max()) <= 16.001


def hybrid() -> vt.Model:
    spec = vt.decoder(vocab=19, width=16, layers=3, heads=4, kv_heads=2)
    state = replace(spec.layers[0], attention=vt.KimiDelta(4, vt.RMSNorm(), rank=2), qk=())
    return sharpen(vt.build(replace(spec, layers=(state, spec.layers[1], state))).double())


@torch.no_grad()
def test_steps_padding_and_documents():
    m, tokens = hybrid(), torch.randint(19, (2, 12), generator=torch.Generator().manual_seed(0))
    whole, cache = m(tokens), m.new_cache(2, draft=2)
    parts = [m(part, cache=cache) for part in tokens[:, :9].split((5, 1, 3), 1)]
    m(tokens[:, :2], cache=cache)
    cache.crop(9)
    parts.append(m(tokens[:, 9:], cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
    padded = m(torch.nn.functional.pad(tokens, (3, 0)), positions=Positions.rows([12, 12], width=15, pad="left"))
    torch.testing.assert_close(padded[:, 3:], whole, rtol=1e-9, atol=1e-9)
    packed = m(tokens[:1], positions=Positions.packed([[5, 7]]))
    torch.testing.assert_close(packed[:, 5:], m(tokens[:1, 5:]), rtol=1e-9, atol=1e-9)


def test_gradients():
    q, k, v = (vectors(1, 3, 1, 2, seed=i).requires_grad_() for i in range(3))
    g, beta = (-vectors(1, 3, 1, 2, seed=3).abs()).requires_grad_(), vectors(1, 3, 1, seed=4).sigmoid().requires_grad_()
    start, pos = vectors(1, 1, 2, 2, seed=5).requires_grad_(), Positions.arange(1, 3)
    assert torch.autograd.gradcheck(lambda *args: delta_rule(*args, pos, ())[0], (q, k, v, g, beta, start))


def test_what_cannot_be():
    with pytest.raises(BadInput, match="width 16 does not divide into 3 heads"):
        vt.KimiDelta(3, vt.RMSNorm()).shape(16)
    with pytest.raises(Refused, match="no cross-attention"):
        vt.KimiDelta(2, vt.RMSNorm()).build_cross(16, None)
    with pytest.raises(Refused, match="no scores that a position could act on"):
        vt.build(vt.decoder(vocab=9, width=16, layers=1, attention=vt.KimiDelta(2, vt.RMSNorm()), position="alibi"))
