"""Transformer-XL and shifted positions: sinusoids of a distance. P7."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from tests.position.helpers import F64, SHAPE, bias_of, built, check_gradients, moved, only_bias, positions, vectors
from vantage.errors import BadInput
from vantage.position import Shifted, TransformerXL, sinusoid
from vantage.position.xl import ContentBias, DistanceTerm
from vantage.spec.parts import BiasInputs, Parts, Shape, materialise
from vantage.spec.positions import Positions

BOTH = (DistanceTerm(10000.0), Shifted(anchor=3))


def distances(q_pos: Positions, k_pos: Positions) -> torch.Tensor:
    return q_pos.pos[:, :, None] - k_pos.pos[:, None]


# ---- Transformer-XL


def test_scores_are_xlnets():
    """The relative attention of transformers' XLNet, with its shift, gives the same weights."""
    B, T, S, H, d, D = 2, 5, 9, 2, 4, 8
    torch.manual_seed(0)
    config = XLNetConfig(d_model=D, n_head=H, d_inner=8, n_layer=1, vocab_size=5, dropout=0.0)
    theirs = XLNetRelativeAttention(config).double()
    for p in theirs.parameters():
        torch.nn.init.normal_(p)
    model = XLNetModel(config)
    q, k, v = (torch.randn(n, B, H, d, dtype=F64) for n in (T, S, S))
    r = torch.einsum("ibh,hnd->ibnd", model.relative_positional_encoding(T, S, bsz=B).double(), theirs.r)
    _, weights = theirs.rel_attn_core(q, k, v, r, output_attentions=True)

    shape = Shape(width=D, heads=H, kv_heads=H, key_dim=d, value_dim=d, rotary_dim=d)
    parts = TransformerXL().parts(causal=False)
    (content,), distance = (c.build(shape).double() for c in parts.qk), parts.bias.build(shape).double()
    with torch.no_grad():
        content.u.copy_(theirs.r_w_bias)
        distance.v.copy_(theirs.r_r_bias)
        distance.w_r.copy_(theirs.r.permute(1, 2, 0))
    q_pos, k_pos = Positions.arange(B, T, start=S - T), Positions.arange(B, S)
    q_raw, keys = q.permute(1, 2, 0, 3), content.key(k.permute(1, 2, 0, 3), k_pos)
    scores = content.query(q_raw, q_pos) @ keys.transpose(-1, -2) * d**-0.5
    scores = scores + bias_of(distance, q_pos, k_pos, q=q_raw, k=keys, shape=shape, scale=d**-0.5)
    torch.testing.assert_close(scores.softmax(-1), weights.permute(2, 3, 0, 1), atol=1e-6, rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(positions(high=5000), positions(high=5000))
def test_distance_term_written_out(q_pos, k_pos):
    part = built(DistanceTerm(base=300.0))
    q = vectors(2, 4, q_pos.shape[1], SHAPE.key_dim, 1)
    R = sinusoid(distances(q_pos, k_pos), SHAPE.width, 300.0, "halves")  # (B, T, S, D): what the part never forms
    want = 0.3 * torch.einsum("bhtd,hdw,btsw->bhts", q + part.v[:, None], part.w_r, R)
    torch.testing.assert_close(bias_of(part, q_pos, k_pos, q=q), want, atol=1e-9, rtol=1e-9)


def test_content_bias_is_added_to_the_query_alone():
    part, pos = built(ContentBias()), Positions.arange(1, 3)
    q, k = vectors(1, 4, 3, 6), vectors(1, 2, 3, 6)
    torch.testing.assert_close(part.query(q, pos) - q, part.u[None, :, None].expand(1, 4, 3, 6))
    assert part.key(k, pos) is k


def test_content_bias_is_as_wide_as_what_is_turned():
    mla = Shape(width=8, heads=2, kv_heads=2, key_dim=6, value_dim=4, rotary_dim=2)
    assert ContentBias().build(mla).u.shape == (2, 2)
    assert DistanceTerm(10000.0).build(mla).v.shape == (2, 6)
    assert DistanceTerm(10000.0).build(mla).w_r.shape == (2, 6, 8)


def test_gradients():
    distance, content = built(DistanceTerm(10000.0)), built(ContentBias())
    q_pos, k_pos = torch.tensor([[7, 2]]), torch.tensor([[0, 9, -1]])
    check_gradients(distance, lambda: bias_of(distance, Positions.of(q_pos), Positions.of(k_pos)))
    check_gradients(content, lambda: content.query(vectors(1, 4, 2, 6), Positions.of(q_pos)))


def test_parameters_start_small():
    torch.manual_seed(0)
    shape = Shape(width=32, heads=32, kv_heads=1, key_dim=32, value_dim=4, rotary_dim=32)
    for table in (
        ContentBias().build(shape).u,
        DistanceTerm(10000.0).build(shape).v,
        DistanceTerm(10000.0).build(shape).w_r,
    ):
        assert table.std().item() == pytest.approx(0.02, rel=0.1)


def test_where_it_acts():
    config = TransformerXL(base=500.0)
    assert config.parts(causal=True) == config.parts(causal=False)
    assert config.parts(causal=True) == Parts(qk=(ContentBias(),), bias=DistanceTerm(500.0))
    assert ContentBias().shared is False
    assert DistanceTerm(10000.0).shared is False


# ---- shifted


@pytest.mark.parametrize("anchor", [0, 5, 512])
def test_P7_the_attended_token_is_shifted_so_that_the_query_stands_at_the_anchor(anchor):
    part = built(only_bias(Shifted(anchor).parts(causal=True)))
    q_pos, k_pos = Positions.arange(1, 4, start=20), Positions.arange(1, 24)
    q = vectors(1, 4, 4, SHAPE.key_dim, 1)
    got = bias_of(part, q_pos, k_pos, q=q, scale=0.5)
    for t in range(4):
        for s in range(24):
            PE = sinusoid(torch.tensor(anchor - (20 + t - s)), SHAPE.key_dim)
            torch.testing.assert_close(got[0, :, t, s], 0.5 * q[0, :, t] @ PE)


def test_P7_another_base():
    part = built(Shifted(base=50.0))
    q_pos, k_pos = Positions.arange(1, 1, start=3), Positions.arange(1, 4)
    q = vectors(1, 4, 1, SHAPE.key_dim, 1)
    want = q @ sinusoid(torch.tensor([-3, -2, -1, 0]), SHAPE.key_dim, 50.0).T
    torch.testing.assert_close(bias_of(part, q_pos, k_pos, q=q, scale=1.0), want)


@pytest.mark.parametrize("config", BOTH)
@settings(deadline=None, max_examples=20)
@given(positions(high=3000), positions(high=3000), st.integers(1, 10_000))
def test_P7_the_score_depends_on_the_distance_alone(config, q_pos, k_pos, by):
    part = built(config)
    both = (q_pos.filled[:, None, :, None] & k_pos.filled[:, None, None, :]).expand(-1, 4, -1, -1)
    here, there = bias_of(part, q_pos, k_pos), bias_of(part, moved(q_pos, by), moved(k_pos, by))
    torch.testing.assert_close(here[both], there[both], atol=1e-8, rtol=1e-8)


# ---- what they share


@pytest.mark.parametrize("config", BOTH)
def test_waves_are_made_once_for_all_layers_and_stay_apart(config):
    pos = Positions.arange(2, 5)
    one, other = built(config, seed=1), built(Shifted(anchor=9, base=7.0))
    first = bias_of(one, pos, pos)
    made = len(pos.memo)
    again = bias_of(built(config, seed=1), pos, pos)
    assert len(pos.memo) == made
    torch.testing.assert_close(again, first)
    torch.testing.assert_close(bias_of(other, pos, pos), bias_of(other, Positions.arange(2, 5), Positions.arange(2, 5)))
    torch.testing.assert_close(bias_of(one, pos, pos), first)


@pytest.mark.parametrize("config", BOTH)
def test_half_precision_is_worked_out_in_float32(config):
    part = built(config, dtype=torch.bfloat16)
    q = vectors(1, 4, 3, 6).to(torch.bfloat16)
    pos = Positions.arange(1, 3, start=5000)
    assert part.at(BiasInputs(q, q, q, pos, pos, 0.3)).value.dtype == torch.float32
    exact = bias_of(part.double(), Positions.arange(1, 3), Positions.arange(1, 3), q=q.double(), k=q.double())
    half = part.to(torch.bfloat16).at(BiasInputs(q, q, q, pos, pos, 0.3))
    torch.testing.assert_close(materialise(half, pos.against(pos), 4, F64), exact, atol=0.05, rtol=0.02)


def test_odd_widths_are_refused():
    odd = Shape(width=7, heads=1, kv_heads=1, key_dim=7, value_dim=7, rotary_dim=7)
    with pytest.raises(BadInput, match="Transformer-XL's sinusoid works on pairs of dimensions, got 7"):
        DistanceTerm(10000.0).build(odd)
    with pytest.raises(BadInput, match="a shifted encoding works on pairs of dimensions, got 7"):
        Shifted().build(odd)
