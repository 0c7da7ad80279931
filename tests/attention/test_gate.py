"""The gate between kernel and output map: the worked number, Qwen3-Next's own attention, and rows of nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding

import vantage as vt
from tests.attention.helpers import F64, vectors
from vantage.attention.gate import OutputGate
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

SHAPE = Shape(width=4, heads=1, kv_heads=1, key_dim=2, value_dim=2, rotary_dim=2)


def gated(spec: vt.ModelSpec, gate: OutputGate) -> vt.ModelSpec:
    return replace(spec, layers=tuple(replace(layer, output=(gate,)) for layer in spec.layers))


@pytest.mark.parametrize(
    ("function", "want"), [("sigmoid", [1.0, -3.0]), ("softplus", [2 * 0.6931472, -4 * 1.3862944])]
)
def test_the_worked_number(function, want):
    """o = (2, -4), gate inputs (0, ln 3)."""
    gate = OutputGate(function=function).build(SHAPE).double()
    with torch.no_grad():
        gate.map.weight.zero_()
        gate.map.weight[1, 0] = torch.tensor(3.0).log()
    x = torch.tensor([[[1.0, 0, 0, 0]]], dtype=F64)
    out = gate(torch.tensor([[[[2.0, -4.0]]]], dtype=F64), x, Positions.arange(1, 1))
    torch.testing.assert_close(out[0, 0, 0], torch.tensor(want, dtype=F64))


def test_qwen3_nexts_attention():
    """Its gate stands in q_proj: for each head d rows of q, then d rows of gate."""
    H, G, d, D, T = 4, 2, 8, 16, 7
    config = Qwen3NextConfig(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=G, head_dim=d, partial_rotary_factor=1.0
    )
    config._attn_implementation = "eager"
    theirs = Qwen3NextAttention(config, 0).double().eval()
    spec = vt.decoder(
        vocab=9,
        width=D,
        layers=1,
        attention=vt.GroupedQuery(H, G, head_dim=d),
        position=vt.Rope(base=config.rope_parameters["rope_theta"]),
    )
    norm = vt.QKNorm(vt.RMSNorm(eps=config.rms_norm_eps))
    layer = spec.layers[0]
    spec = replace(gated(spec, OutputGate()), layers=(replace(layer, qk=(norm, *layer.qk), output=(OutputGate(),)),))
    model = sharpen(vt.build(spec).double())
    ours = model.blocks[0].sublayers[0]
    q, gate = theirs.q_proj.weight.data.view(H, 2, d, D).unbind(1)
    with torch.no_grad():
        ours.qkv.weight.copy_(torch.cat([q.reshape(-1, D), theirs.k_proj.weight, theirs.v_proj.weight]))
        ours.output[0].map.weight.copy_(gate.reshape(-1, D))
        ours.out.weight.copy_(theirs.o_proj.weight)
        for mine, other in ((ours.qk[0].q_norm, theirs.q_norm), (ours.qk[0].k_norm, theirs.k_norm)):
            mine.weight.copy_(1 + other.weight)
    x = vectors(2, T, D)
    turn = Qwen3NextRotaryEmbedding(config).double()(x, torch.arange(T)[None].expand(2, T))
    mask = torch.full((T, T), -torch.inf, dtype=F64).triu(1)[None, None]
    want, _ = theirs(x, position_embeddings=turn, attention_mask=mask)
    from tests.attention.helpers import run

    torch.testing.assert_close(run(ours, x), want, atol=1e-6, rtol=1e-6)


def test_a_query_that_sees_nothing_stays_zero():
    gate = OutputGate().build(SHAPE).double()
    out = gate(torch.zeros(1, 1, 3, 2, dtype=F64), vectors(1, 3, 4), Positions.arange(1, 3))
    assert not out.any()


def test_one_gate_for_each_head():
    shape = Shape(width=6, heads=3, kv_heads=1, key_dim=2, value_dim=2, rotary_dim=2)
    gate = OutputGate(per="head", bias=True).build(shape).double()
    out, x = vectors(1, 3, 4, 2), vectors(1, 4, 6, seed=1)
    want = out * torch.sigmoid(gate.map(x)).transpose(1, 2)[..., None]
    torch.testing.assert_close(gate(out, x, Positions.arange(1, 4)), want)


def test_gradients():
    gate = OutputGate().build(SHAPE).double()
    out, x = vectors(1, 1, 3, 2).requires_grad_(), vectors(1, 3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda o, x: gate(o, x, Positions.arange(1, 3)), (out, x))


def test_what_cannot_be():
    with pytest.raises(BadInput, match="per='all'"):
        OutputGate(per="all")
    with pytest.raises(BadInput, match="function='relu'"):
        OutputGate(function="relu")
    latent = vt.Latent(2, kv_rank=4, nope_dim=4, rope_dim=4, value_dim=4, norm=vt.RMSNorm())
    with pytest.raises(Refused, match="Latent cannot have an output transform"):
        vt.build(gated(vt.decoder(vocab=9, width=8, layers=1, attention=latent), OutputGate()))


def test_it_is_saved_with_the_model(tmp_path):
    model = vt.build(gated(vt.decoder(vocab=9, width=8, layers=2, heads=2), OutputGate(per="head")))
    vt.save(model, tmp_path / "m")
    again = vt.load(tmp_path / "m")
    assert again.spec == model.spec
    tokens = torch.arange(8)[None]
    torch.testing.assert_close(again(tokens), model(tokens))
