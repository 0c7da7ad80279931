"""Transforms of queries and keys that are not positions: norms and temperature."""

from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.attention.helpers import F64, attention, check_gradients, run, vectors
from vantage.attention import GroupedQuery, LengthTemperature, QKNorm
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput
from vantage.kernels.native import native
from vantage.model.norms import LayerNorm, RMSNorm
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions


def test_what_a_norm_of_queries_and_keys_is_called():
    assert QKNorm(RMSNorm()).describe() == "q/k norm"
    assert QKNorm(RMSNorm(), keys=False).describe() == "q norm"


def test_qk_norm_norms_every_head_of_queries_and_keys():
    part = QKNorm(RMSNorm(eps=0.0)).build(Shape(8, 2, 1, 4, 4, 4)).to(F64)
    q, pos = vectors(2, 2, 3, 4), Positions.arange(2, 3)
    rms = q.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(part.query(q, pos), q / rms)
    torch.testing.assert_close(part.key(q, pos), q / rms)
    with torch.no_grad():
        part.q_norm.weight.fill_(2.0)
        part.k_norm.weight.fill_(3.0)
    torch.testing.assert_close(part.query(q, pos), 2 * q / rms)
    torch.testing.assert_close(part.key(q, pos), 3 * q / rms)
    layer = QKNorm(LayerNorm()).build(Shape(8, 2, 1, 4, 4, 4)).to(F64)
    torch.testing.assert_close(layer.query(q, pos), torch.nn.functional.layer_norm(q, (4,)))


def test_length_temperature():
    part = LengthTemperature(scale=0.5, floor=4.0).build(Shape(8, 2, 1, 4, 4, 4))
    q = torch.ones(1, 2, 6, 4, dtype=F64)
    pos = Positions.of(torch.tensor([[0, 2, 3, 7, 11, 12]]))
    steps = torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0, 3.0])
    wanted = (1 + 0.5 * (1 + steps).log()).view(1, 1, 6, 1).to(F64)
    torch.testing.assert_close(part.query(q, pos), wanted.expand_as(q), rtol=1e-6, atol=0)
    assert part.key(q, pos) is q
    assert LengthTemperature() == LengthTemperature(0.1, 8192.0)


def test_length_temperature_is_llama_4s():
    positions = torch.arange(0, 40000, 997)
    theirs = torch.log1p(torch.floor((positions.float() + 1.0) / 8192)) * 0.1 + 1.0  # modeling_llama4
    part = LengthTemperature().build(Shape(8, 2, 1, 4, 4, 4))
    ours = part.query(torch.ones(1, 1, len(positions), 1), Positions.of(positions))
    torch.testing.assert_close(ours[0, 0, :, 0], theirs)


def factor_of(part: LengthTemperature, *positions: int) -> list[float]:
    module, pos = part.build(Shape(8, 2, 1, 4, 4, 4)), Positions.of(torch.tensor(positions))
    return module.query(torch.ones(1, 1, len(positions), 1), pos).flatten().tolist()


@pytest.mark.parametrize(
    ("kind", "at_8191", "at_16383"),
    [("llama4", 1.0693, 1.1099), ("ministral3", 1.0, 1.0693), ("inkling", 1.0, 1.0693), ("self-extend", 1.0, 1.0769)],
)
def test_the_kinds_of_length_temperature_at_the_end_of_a_length(kind, at_8191, at_16383):
    assert factor_of(LengthTemperature(0.1, 8192.0, kind), 8191, 16383) == pytest.approx([at_8191, at_16383], abs=5e-5)


@pytest.mark.parametrize("kind", ["llama4", "ministral3", "inkling", "self-extend"])
def test_the_first_token_is_never_sharpened_and_padding_no_more_than_it(kind):
    assert factor_of(LengthTemperature(0.5, 2.0, kind), 0, -1) == [1.0, 1.0]


@pytest.mark.skipif(native() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("keys", [True, False])
def test_a_native_step_norms_what_a_pass_norms(keys):
    spec = vt.decoder(vocab=9, width=32, layers=1, attention=GroupedQuery(2, 1, head_dim=16), position="rope")
    layer = replace(spec.layers[0], qk=(QKNorm(RMSNorm(), keys), *spec.layers[0].qk))
    model, tokens = sharpen(vt.build(replace(spec, layers=(layer,)))), torch.tensor([[3, 1, 4, 1, 5]])
    with torch.inference_mode():
        whole = model(tokens)
        model.kernel = "native"
        torch.testing.assert_close(model(tokens, cache=model.new_cache()), whole, rtol=1e-4, atol=1e-4)


def test_ministral_3s_temperature_is_transformers():
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    positions = torch.arange(0, 400, 7)
    theirs = get_llama_4_attn_scale(positions[None], 0.3, 64)
    ours = factor_of(LengthTemperature(0.3, 64.0, "ministral3"), *positions.tolist())
    torch.testing.assert_close(torch.tensor(ours), theirs.flatten())


def test_inklings_temperature_is_transformers_on_rows_without_padding():
    positions = torch.arange(0, 400, 7)
    theirs = 1.0 + 0.3 * torch.log(((positions + 1).float() / 64).clamp(min=1.0))  # modeling_inkling
    ours = factor_of(LengthTemperature(0.3, 64.0, "inkling"), *positions.tolist())
    torch.testing.assert_close(torch.tensor(ours), theirs)


@pytest.mark.parametrize("wrong", [{"kind": "llama5"}, {"floor": 0.0}, {"floor": 1.0, "kind": "self-extend"}])
def test_a_length_temperature_that_cannot_be(wrong):
    with pytest.raises(BadInput, match=r"llama4|above 1"):
        LengthTemperature(**wrong)


def test_norms_belong_to_a_layer_and_the_temperature_to_none():
    assert not QKNorm(RMSNorm()).shared
    assert LengthTemperature().shared
    latent = QKNorm(RMSNorm()).build(Shape(8, 2, 2, key_dim=6, value_dim=4, rotary_dim=2))
    assert latent.q_norm.weight.shape == latent.k_norm.weight.shape == (2,)
    assert latent.q_norm is not latent.k_norm


def test_it_acts_inside_attention():
    """With q/k norm the size of a query or a key does not matter."""
    module = attention(GroupedQuery(2), 8, parts=Parts(qk=(QKNorm(RMSNorm(eps=0.0)),)))
    x, seen = vectors(1, 4, 8), []
    for _ in range(2):
        run(module, x, watch=lambda site, i, view, need, done: seen.append(done.weights))
        with torch.no_grad():
            module.qkv.weight[:16] *= 3.0
    torch.testing.assert_close(seen[0], seen[1])


@pytest.mark.parametrize("part", [QKNorm(RMSNorm()), QKNorm(LayerNorm())])
def test_gradcheck(part):
    module = part.build(Shape(8, 2, 1, 4, 4, 4)).to(F64)
    pos = Positions.arange(1, 2)
    check_gradients(module, lambda m, q, k: (m.query(q, pos), m.key(k, pos)), vectors(1, 2, 2, 4), vectors(1, 1, 2, 4))
