"""The gated delta rule: the worked number, transformers' functions and layer, padding, documents, and going back."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import (
    Qwen3NextGatedDeltaNet,
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

import vantage as vt
from tests.attention.helpers import F64, context, vectors
from vantage.attention.delta import GatedDelta
from vantage.attention.delta_rule import delta_rule
from vantage.cache.build import no_caches
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, CacheError, Refused
from vantage.spec.positions import Positions


def ones(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)[None, :, None]


def test_the_worked_number():
    """d = 1, q = k = 1, e^g = β = ½, v = 2, 4, 6: o = 1, 2.25, 3.5625; padding after that changes nothing."""
    v = ones(2, 4, 6, 9)[..., None]
    pos = Positions.of(torch.tensor([[0, 1, 2, -1]]))
    q = k = torch.ones(1, 4, 1, 1, dtype=F64)
    half = ones(0.5, 0.5, 0.5, 0.5)
    out, states = delta_rule(q, k, v, half.log(), half, torch.zeros(1, 1, 1, 1, dtype=F64), pos, (2, 3))
    assert out[0, :3, 0, 0].tolist() == [1, 2.25, 3.5625]
    assert [state.item() for state in states] == [3.5625, 3.5625]


def test_a_document_begins_with_an_empty_state():
    pos = Positions.packed([[2, 3]])
    q, k, v = (vectors(1, 5, 2, 3, seed=i) for i in range(3))
    g, beta = -vectors(1, 5, 2, seed=3).abs(), vectors(1, 5, 2, seed=4).sigmoid()
    empty = torch.zeros(1, 2, 3, 3, dtype=F64)
    both, _ = delta_rule(q, k, v, g, beta, empty, pos, ())
    second = [t[:, 2:] for t in (q, k, v, g, beta)]
    alone, _ = delta_rule(*second, empty, Positions.arange(1, 3), ())
    torch.testing.assert_close(both[:, 2:], alone)


@pytest.mark.parametrize("theirs", [torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule])
def test_transformers_rule(theirs):
    B, T, H, d, e = 2, 9, 3, 4, 5
    q, k, v = vectors(B, T, H, d).float(), vectors(B, T, H, d, seed=1).float(), vectors(B, T, H, e, seed=2).float()
    g, beta = -vectors(B, T, H, seed=3).abs().float(), vectors(B, T, H, seed=4).sigmoid().float()
    start = vectors(B, H, d, e, seed=5).float()
    want, last = theirs(q, k, v, g=g, beta=beta, initial_state=start, output_final_state=True)
    out, states = delta_rule(q, k, v, g, beta, start, Positions.arange(B, T), (T - 1,))
    torch.testing.assert_close(out, want, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(states[0], last, atol=2e-5, rtol=2e-4)


def test_qwen3_nexts_layer():
    """Its projections come in groups of key heads: q, k, v and z of one, then of the next."""
    G, H, d, e, D, T = 2, 4, 4, 6, 16, 7
    config = Qwen3NextConfig(
        hidden_size=D,
        linear_num_key_heads=G,
        linear_num_value_heads=H,
        linear_key_head_dim=d,
        linear_value_head_dim=e,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = Qwen3NextGatedDeltaNet(config, 0).eval()
    torch.nn.init.normal_(theirs.norm.weight)
    norm = vt.RMSNorm(eps=config.rms_norm_eps)
    layer = GatedDelta(H, norm, key_heads=G, key_dim=d, value_dim=e)
    spec = vt.decoder(vocab=9, width=D, layers=1, attention=layer, position="none")
    model = vt.build(spec).eval()
    ours = model.blocks[0].sublayers[0]
    r = H // G
    with torch.no_grad():
        grouped = theirs.in_proj_qkvz.weight.view(G, 2 * d + 2 * r * e, D).split((d, d, r * e, r * e), 1)
        q, k, v, z = (part.reshape(-1, D) for part in grouped)
        b, a = (part.reshape(-1, D) for part in theirs.in_proj_ba.weight.view(G, 2 * r, D).split((r, r), 1))
        ours.qkv.weight.copy_(torch.cat([q, k, v]))
        ours.gates.weight.copy_(torch.cat([z, b, a]))
        ours.conv.weight.copy_(theirs.conv1d.weight[:, 0])
        ours.dt_bias.copy_(theirs.dt_bias)
        ours.A_log.copy_(theirs.A_log)
        ours.norm.weight.copy_(theirs.norm.weight)
        ours.out.weight.copy_(theirs.out_proj.weight)
        x = vectors(2, T, D).float()
        got = ours(x, context(Positions.arange(2, T), caches=no_caches(model.spec, None, model.dtype)))
        torch.testing.assert_close(got, theirs(x), atol=2e-5, rtol=2e-4)


def test_fresh_heads():
    """Rates from next to nothing to 16."""
    fresh = GatedDelta(500, vt.RMSNorm(), key_dim=1)
    layer = vt.build(vt.decoder(vocab=9, width=2, layers=1, attention=fresh, position="none")).blocks[0].sublayers[0]
    rates = layer.A_log.detach().exp()
    assert float(rates.min()) < 0.2
    assert 15.5 < float(rates.max()) <= 16.001


# ---- in a model


def hybrid(layers: str = "sas", **options) -> vt.Model:
    """State layers (s) and attention (a), in float64."""
    from dataclasses import replace

    norm = vt.RMSNorm()
    spec = vt.decoder(vocab=19, width=16, layers=len(layers), heads=4, kv_heads=2, **options)
    state = replace(
        spec.layers[0], attention=GatedDelta(4, norm, key_heads=2), qk=(), mask=vt.Causal() & vt.SameSegment()
    )
    return sharpen(
        vt.build(
            replace(spec, layers=tuple(state if c == "s" else spec.layers[i] for i, c in enumerate(layers)))
        ).double()
    )


TOKENS = torch.randint(19, (2, 20), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_the_state_has_the_same_size_at_any_length():
    model = hybrid("s")
    cache = model.new_cache(2)
    model(TOKENS[:, :10], cache=cache)
    size = cache.bytes
    for t in range(10, 18):
        model(TOKENS[:, t : t + 1], cache=cache)
    assert cache.bytes == size
    assert cache.tokens == (18, 18)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "paged", "quantised"])
def test_going_back_as_far_as_was_asked_for(kind):
    model = hybrid()
    cache = model.new_cache(2, kind=kind, draft=4)
    model(TOKENS[:, :9], cache=cache)
    model(TOKENS[:, :4], cache=cache)
    with pytest.raises(CacheError, match="cannot take row 0 back to 5"):
        cache.crop(5)
    cache.crop(9)
    rest = model(TOKENS[:, 9:12], cache=cache)
    if kind != "quantised":
        torch.testing.assert_close(rest, model(TOKENS[:, :12])[:, 9:], rtol=1e-9, atol=1e-9)
    cache.crop([10, 9])
    assert cache.tokens == (10, 9)
    cache.crop(0)
    assert cache.tokens == (0, 0)


@torch.no_grad()
def test_a_pass_that_fails_leaves_the_states_as_they_were():
    model = hybrid()
    cache = model.new_cache(2)
    model(TOKENS[:, :5], cache=cache)
    hook = model.blocks[2].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
    with pytest.raises(RuntimeError, match="stop"):
        model(TOKENS[:, 5:8], cache=cache)
    hook.remove()
    torch.testing.assert_close(model(TOKENS[:, 5:8], cache=cache), model(TOKENS[:, :8])[:, 5:], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_join_and_split():
    model = hybrid()
    pool = model.new_cache(1, kind="paged", block=4)
    rows = [pool.fresh(1) for _ in range(2)]
    for b, n in enumerate((6, 3)):
        model(TOKENS[b : b + 1, :n], cache=rows[b])
    whole = type(pool).join(rows)
    step = torch.stack([TOKENS[0, 6], TOKENS[1, 3]])[:, None]
    got = model(step, cache=whole)
    for b, n in enumerate((6, 3)):
        torch.testing.assert_close(got[b, 0], model(TOKENS[b : b + 1, : n + 1])[0, -1], rtol=1e-9, atol=1e-9)
    for b, (row, n) in enumerate(zip(whole.split(), (7, 4), strict=True)):
        got = model(TOKENS[b : b + 1, n : n + 2], cache=row)
        torch.testing.assert_close(got, model(TOKENS[b : b + 1, : n + 2])[:, n:], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_saved_cache_goes_on(tmp_path):
    from vantage.cache.saved import Fingerprint, read_cache, save_cache

    model = hybrid()
    cache = model.new_cache(2)
    model(TOKENS[:, :7], cache=cache)
    save_cache(cache, tmp_path / "c", fingerprint=Fingerprint("m", "d"))
    again = read_cache(tmp_path / "c", like=model.new_cache(2), fingerprint=Fingerprint("m", "d")).cache
    torch.testing.assert_close(model(TOKENS[:, 7:10], cache=again), model(TOKENS[:, :10])[:, 7:], rtol=1e-9, atol=1e-9)


def test_gradients():
    model = hybrid("s")
    model(TOKENS[:, :6]).square().sum().backward()
    names = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()}
    assert names == set()
    with pytest.raises(BadInput, match="a cache keeps no gradients"):
        model(TOKENS[:, :6], cache=model.new_cache(2))


def test_what_cannot_be():
    delta = GatedDelta(2, vt.RMSNorm())
    with pytest.raises(Refused, match="a delta rule has no scores that a position could act on"):
        vt.build(vt.decoder(vocab=9, width=8, layers=1, attention=delta, position="alibi"))
    with pytest.raises(Refused, match="a delta rule sees all that came before"):
        vt.build(
            vt.decoder(vocab=9, width=8, layers=1, attention=delta, position="none", mask=vt.Causal() & vt.Window(2))
        )
    with pytest.raises(Refused, match="a delta rule sees all that came before"):  # a new document empties its state
        vt.build(vt.decoder(vocab=9, width=8, layers=1, attention=delta, position="none", mask=vt.Causal()))
    with pytest.raises(BadInput, match="3 heads over 2 of keys"):
        GatedDelta(3, vt.RMSNorm(), key_heads=2).shape(12)
