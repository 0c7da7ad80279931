"""Mamba-2: a worked number, transformers' two forms, steps, padding, documents, gradients and costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import (
    Mamba2Mixer,
    mamba2_chunk_scan,
    mamba2_selective_state_update,
)

import vantage as vt
from tests.attention.helpers import F64, context, vectors
from tests.attention.model_checks import check_saved
from vantage.attention.state_space import state_space
from vantage.cache.build import no_caches
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.inspect import cost
from vantage.spec.positions import Positions


def test_a_worked_number():
    """A step of 1 that halves the state: x = 2, 4, 6 give 2, ½·2 + 4 and ½·5 + 6."""
    x = torch.tensor([2.0, 4, 6], dtype=F64).view(1, 3, 1, 1)
    one, rate = torch.ones(1, 3, 1, 1, dtype=F64), torch.tensor([0.5], dtype=F64).log()
    empty, pos = torch.zeros(1, 1, 1, 1, dtype=F64), Positions.arange(1, 3)
    out, (last,) = state_space(x, one[..., 0], rate, one, one, empty, pos, (2,))
    assert out.flatten().tolist() == pytest.approx([2, 5, 8.5])
    assert float(last) == pytest.approx(8.5)
    # a step of 2 takes in twice as much, and lets the state fade by a quarter
    out, _ = state_space(x, 2 * one[..., 0], rate, one, one, empty, pos, ())
    assert out.flatten().tolist() == pytest.approx([4, 9, 14.25])


@torch.no_grad()
def test_transformers_forms():
    B, T, H, e, d = 2, 11, 4, 3, 5
    x, step = vectors(B, T, H, e).float(), vectors(B, T, H, seed=1).abs().float()
    b, c = (vectors(B, T, 2, d, seed=i).float() for i in (2, 3))
    rate, start = -vectors(H, seed=4).abs().float(), vectors(B, H, d, e, seed=5).float()
    every_b, every_c = (t.repeat_interleave(H // 2, 2) for t in (b, c))
    out, (last,) = state_space(x, step, rate, every_b, every_c, start, Positions.arange(B, T), (T - 1,))
    theirs, state = mamba2_chunk_scan(x, step, rate, b, c, 4, initial_states=start.mT, return_final_states=True)
    torch.testing.assert_close(out, theirs, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(last, state.mT, atol=2e-5, rtol=2e-4)
    state = start.mT.contiguous()
    for t in range(T):
        dt, A = step[:, t, :, None].expand(-1, -1, e), rate[:, None, None].expand(-1, e, d)
        one = mamba2_selective_state_update(state, x[:, t], dt, A, b[:, t], c[:, t])
        torch.testing.assert_close(out[:, t], one, atol=2e-5, rtol=2e-4)


@torch.no_grad()
def test_mamba_2s_layer():
    H, e, d, G, D, T = 4, 8, 5, 2, 16, 7
    config = Mamba2Config(
        num_heads=H,
        head_dim=e,
        hidden_size=D,
        state_size=d,
        expand=2,
        n_groups=G,
        num_hidden_layers=1,
        use_bias=True,
        chunk_size=4,
    )
    theirs = Mamba2Mixer(config, 0).eval()
    mixer = vt.Mamba2(H, vt.RMSNorm(eps=config.layer_norm_epsilon), state_dim=d, groups=G, bias=True)
    model = vt.build(vt.decoder(vocab=9, width=D, layers=1, attention=mixer, position="none")).eval()
    ours = model.blocks[0].sublayers[0]
    for p in theirs.parameters():
        p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.5)
    ours.maps.load_state_dict(theirs.in_proj.state_dict())
    ours.out.load_state_dict(theirs.out_proj.state_dict())
    ours.norm.load_state_dict(theirs.norm.state_dict())
    ours.conv.weight.copy_(theirs.conv1d.weight[:, 0])
    ours.conv.bias.copy_(theirs.conv1d.bias)
    for name in ("dt_bias", "A_log", "D"):
        getattr(ours, name).copy_(getattr(theirs, name))
    x = vectors(2, T, D).float()
    got = ours(x, context(Positions.arange(2, T), caches=no_caches(model.spec, None, model.dtype)))
    torch.testing.assert_close(got, theirs(x), atol=2e-5, rtol=2e-4)


def test_fresh_heads():
    """Steps from a thousandth to a tenth, rates from 1 up, and each token passed on as it is."""
    fresh = vt.Mamba2(500, vt.RMSNorm(), head_dim=1, state_dim=1)
    mixer = vt.build(vt.decoder(vocab=9, width=2, layers=1, attention=fresh, position="none")).blocks[0].sublayers[0]
    steps = torch.nn.functional.softplus(mixer.dt_bias.detach())
    assert 0.00099 < float(steps.min()) < 0.0015
    assert 0.08 < float(steps.max()) < 0.101
    torch.testing.assert_close(mixer.A_log.detach().exp(), torch.arange(1.0, 501))
    assert mixer.D.unique().tolist() == [1]


def hybrid(**options) -> vt.Model:
    spec = vt.decoder(vocab=19, width=16, layers=3, heads=4, kv_heads=2)
    mixer = vt.Mamba2(4, vt.RMSNorm(), head_dim=3, state_dim=5, groups=2, **options)
    state = replace(spec.layers[0], attention=mixer, qk=())
    alone = replace(state, ffn=vt.NoFeedForward())
    return sharpen(vt.build(replace(spec, layers=(state, spec.layers[1], alone))).double())


@pytest.mark.parametrize("options", [{}, {"least_step": 0.6, "greatest_step": 0.8}], ids=["plain", "limits"])
@torch.no_grad()
def test_steps_padding_and_documents(options):
    m, tokens = hybrid(**options), torch.randint(19, (2, 12), generator=torch.Generator().manual_seed(0))
    whole, cache = m(tokens), m.new_cache(2, draft=2)
    parts = [m(part, cache=cache) for part in tokens[:, :9].split((5, 1, 3), 1)]
    m(tokens[:, :2], cache=cache)
    cache.crop(9)
    parts.append(m(tokens[:, 9:], cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
    for pad, shown in (("left", slice(3, None)), ("right", slice(0, 12))):
        width = (3, 0) if pad == "left" else (0, 3)
        padded = m(torch.nn.functional.pad(tokens, width), positions=Positions.rows([12, 12], width=15, pad=pad))
        torch.testing.assert_close(padded[:, shown], whole, rtol=1e-9, atol=1e-9)
    packed = m(tokens[:1], positions=Positions.packed([[5, 7]]))
    torch.testing.assert_close(packed[:, 5:], m(tokens[:1, 5:]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_right_padding_leaves_the_state_for_what_comes_after():
    """A batch of rows of different lengths goes on as each row alone does."""
    m, tokens = hybrid(), torch.randint(19, (2, 9), generator=torch.Generator().manual_seed(1))
    cache = m.new_cache(2)
    m(tokens[:, :6], positions=Positions.rows([6, 4], width=6, pad="right"), cache=cache)
    step = m(tokens[:, 6:7], cache=cache)
    torch.testing.assert_close(step[0], m(tokens[:1, :7])[0, -1:], rtol=1e-9, atol=1e-9)
    alone = torch.cat([tokens[1:, :4], tokens[1:, 6:7]], 1)
    torch.testing.assert_close(step[1], m(alone)[0, -1:], rtol=1e-9, atol=1e-9)


def test_gradients():
    x, b, c = (vectors(1, 3, 2, n, seed=n).requires_grad_() for n in (2, 3, 3))
    step, rate = vectors(1, 3, 2, seed=4).abs().requires_grad_(), (-vectors(2, seed=5).abs()).requires_grad_()
    start, pos = vectors(1, 2, 3, 2, seed=6).requires_grad_(), Positions.arange(1, 3)
    assert torch.autograd.gradcheck(lambda *args: state_space(*args, pos, ())[0], (x, step, rate, b, c, start))
    m = hybrid().train()
    m(torch.arange(9)[None]).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in m.parameters())


def test_a_layer_without_a_feed_forward_layer_has_one_norm():
    m = hybrid()
    assert sum(p.numel() for p in m.blocks[2].steps[1].parameters()) == 0
    found = cost(m, context=11, batch=2)
    assert found.total == sum(p.numel() for p in m.parameters())
    m.kernel = "reference"
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        m(torch.zeros(2, 11, dtype=torch.int64))
    assert found.passes[0].operations == counter.get_total_flops()


@pytest.mark.parametrize("options", [{}, {"greatest_step": 0.5}], ids=["no end", "limit"])
def test_saved_and_loaded(options, tmp_path):
    check_saved(hybrid(**options), tmp_path)


def test_what_cannot_be():
    for wrong, words in (
        ({"heads": 3, "groups": 2}, "3 heads in 2 groups"),
        ({"heads": 2, "taps": 1}, "taps=1"),
        ({"heads": 2, "least_step": 2.0, "greatest_step": 1.0}, "two rising numbers"),
    ):
        with pytest.raises(BadInput, match=words):
            vt.Mamba2(norm=vt.RMSNorm(), **wrong)
    with pytest.raises(BadInput, match="does not divide into 3 heads"):
        vt.Mamba2(3, vt.RMSNorm()).shape(16)
    with pytest.raises(Refused, match="no cross-attention"):
        vt.Mamba2(2, vt.RMSNorm()).build_cross(16, None)
    with pytest.raises(Refused, match="no scores that a position could act on"):
        vt.build(vt.decoder(vocab=9, width=16, layers=1, attention=vt.Mamba2(2, vt.RMSNorm()), position="alibi"))
