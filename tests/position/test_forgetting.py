"""FoX: the worked number, ALiBi as a special case, the formula token by token, and what a cache keeps of it."""

from __future__ import annotations

import pytest
import torch

import vantage as vt
from tests.position.helpers import F64, SHAPE, bias_of, built, one_by_one, vectors
from vantage.cache import NoCache
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.position import Forgetting, alibi_slopes
from vantage.spec.kept import KeptStream
from vantage.spec.parts import BiasInputs
from vantage.spec.positions import Positions


def sums(gates_TH: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The stream (1, G, T, H / G) that these gates leave."""
    logs = gates_TH.log().cumsum(0)
    return (logs.unflatten(-1, (SHAPE.kv_heads, -1)).transpose(0, 1)[None],)


def test_the_worked_number():
    """Scores 0 and gates .9, .5, .8: the last row is .4, .8, 1 over 2.2, and the first gate never matters."""
    part, pos = built(Forgetting()), Positions.arange(1, 3)
    rows = []
    for first in (0.9, 0.1):
        stream = sums(torch.tensor([first, 0.5, 0.8], dtype=F64)[:, None].expand(3, SHAPE.heads))
        bias = bias_of(part, pos, pos, streams=stream, own=stream)
        rows.append(bias[0, 0, 2].softmax(-1))
    torch.testing.assert_close(rows[0], torch.tensor([0.4, 0.8, 1.0], dtype=F64) / 2.2)
    torch.testing.assert_close(rows[0], rows[1])


def test_constant_gates_are_alibi():
    slopes = torch.tensor(alibi_slopes(SHAPE.heads), dtype=F64)
    stream, pos = sums(torch.exp(-slopes).expand(7, -1)), Positions.arange(1, 7)
    fox = bias_of(built(Forgetting()), pos, pos, streams=stream, own=stream)
    alibi = bias_of(vt.Alibi().build(SHAPE), pos, pos)
    past = torch.ones(7, 7, dtype=torch.bool).tril()
    torch.testing.assert_close(fox[..., past], alibi[..., past])


def test_what_is_kept_is_the_log_of_a_gate_for_each_head():
    part, x = built(Forgetting()), vectors(2, 1, 5, SHAPE.width)[:, 0]
    (kept,) = part.keep(x, Positions.arange(2, 5))
    assert kept.shape == (2, 2, 5, 2)
    gate = torch.sigmoid(x @ part.gate.weight.T + part.gate.bias)
    for h in range(SHAPE.heads):
        torch.testing.assert_close(kept[:, h // 2, :, h % 2], gate[..., h].log())


def test_key_by_key_it_is_the_same():
    part, stream = built(Forgetting()), (vectors(2, 2, 6, 2, seed=3),)
    pos = Positions.arange(2, 6)
    q, k = vectors(2, 4, 6, 6), vectors(2, 2, 6, 6)
    bias = part.at(BiasInputs(q, q, k, pos, pos, 0.3, None, stream, stream))
    pair = pos.against(pos)
    torch.testing.assert_close(one_by_one(bias, pair, SHAPE.heads), bias_of(part, pos, pos, streams=stream, own=stream))


def test_a_model_is_the_formula():
    """One layer, written out with a loop over keys."""
    spec = vt.decoder(vocab=11, width=8, layers=1, heads=2, kv_heads=1, position="fox")
    model = sharpen(vt.build(spec, kernel="reference").double())
    attention = model.blocks[0].sublayers[0]
    x = vectors(1, 1, 6, 8)[:, 0]
    q, k, v = attention.project(x)
    f = torch.sigmoid(attention.scorer.bias.gate(x))[0]  # (T, H)
    want = torch.zeros(6, 2, 4, dtype=F64)
    for h in range(2):
        for i in range(6):
            scores = [q[0, h, i] @ k[0, 0, j] / 2 + f[j + 1 : i + 1, h].log().sum() for j in range(i + 1)]
            want[i, h] = torch.stack(scores).softmax(0) @ v[0, 0, : i + 1]
    pos = Positions.arange(1, 6)
    stream = attention.scorer.streams(x, pos)
    view = NoCache(spec.layers[0].cache_shape(8).streams).append(pos, k, v, *stream)
    need = attention.scorer.need(q, q, view, pos, x)
    seen = model._choose(need, q, view)(q, view, pos.against(pos), need).out
    torch.testing.assert_close(seen[0].transpose(0, 1), want)


def test_gradients_reach_the_gates():
    model = vt.build(vt.decoder(vocab=11, width=8, layers=2, heads=2, position="fox"))
    model(torch.arange(6)[None]).square().sum().backward()
    gates = [p for name, p in model.named_parameters() if "bias.gate" in name]
    assert len(gates) == 4
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in gates)


# ---- what a cache keeps


def model(dtype=F64, **options) -> vt.Model:
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position="fox", **options)
    return sharpen(vt.build(spec)).to(dtype)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "paged", "quantised"])
def test_int8_leaves_the_sums_alone(kind):
    m = model(torch.float32)
    cache = m.new_cache(2, kind=kind)
    m(torch.arange(10).view(2, 5), cache=cache)
    view = cache.layers[0].view()
    assert view.streams[0].dtype == torch.float32
    x = m.embed(torch.arange(10).view(2, 5), Positions.arange(2, 5), None)
    attention = m.blocks[0].sublayers[0]
    kept = attention.scorer.streams(m.blocks[0].steps[0].before(x), Positions.arange(2, 5))[0].cumsum(2)
    torch.testing.assert_close(view.streams[0], kept)


@torch.no_grad()
def test_sums_stay_in_float32_where_keys_are_in_half():
    m = model(torch.bfloat16)
    cache = m.new_cache()
    m(torch.arange(9)[None], cache=cache)
    view = cache.layers[1].view()
    assert view.k.dtype == torch.bfloat16
    assert view.streams[0].dtype == torch.float32


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "paged", "ring"])
def test_a_rolled_back_row_goes_on_from_the_sum_of_what_it_kept(kind):
    m = model(mask=vt.Causal() & vt.Window(4)) if kind == "ring" else model()
    tokens = torch.randint(19, (2, 14), generator=torch.Generator().manual_seed(0))
    cache = m.new_cache(2, kind=kind, draft=4 if kind == "ring" else None)
    m(tokens[:, :9], cache=cache)
    m(tokens[:, :3], cache=cache)  # other tokens, with other gates
    cache.crop(9)
    rest = torch.cat([m(tokens[:, t : t + 1], cache=cache) for t in range(9, 14)], 1)
    torch.testing.assert_close(rest, m(tokens)[:, 9:], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_padding_lets_nothing_go():
    m, tokens = model(), torch.randint(19, (1, 8), generator=torch.Generator().manual_seed(1))
    padded = torch.cat([tokens.new_zeros(1, 3), tokens], 1)
    mask = torch.arange(11)[None] >= 3
    torch.testing.assert_close(m(padded, mask=mask)[:, 3:], m(tokens), rtol=1e-9, atol=1e-9)


def test_what_does_not_fit():
    with pytest.raises(Refused, match="FoX forgets on the way"):
        vt.encoder(vocab=9, width=8, layers=1, heads=2, position="fox")
    assert Forgetting().streams(SHAPE) == (KeptStream(2, 2, wide=True, running=True),)
    cache = model().new_cache()
    k = torch.zeros(1, 2, 3, 8, dtype=F64)
    with pytest.raises(BadInput, match=r"streams \[\] for a cache that takes \[\(1, 2, 3, 2\)\]"):
        cache.layers[0].append(Positions.arange(1, 3), k, k)


def test_what_it_costs():
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position="fox")
    plain = vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position="none")
    cache, bare = (vt.build(s).new_cache(capacity=10) for s in (spec, plain))
    assert cache.bytes - bare.bytes == 2 * 10 * 4 * 4  # layers, tokens, heads, float32
