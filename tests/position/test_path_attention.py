"""PaTH: the worked number, the product written out for every pair, RoPE as a special case, and what a cache keeps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import vantage as vt
from tests.position.helpers import (
    F64,
    SHAPE,
    bias_of,
    built,
    check_gradients,
    inputs_of,
    only_bias,
    permuted,
    positions,
    unread,
    vectors,
)
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.position import PaTH, path_attention
from vantage.position.path_attention import HouseholderScores
from vantage.spec.kept import KeptStream
from vantage.spec.parts import BiasInputs, Shape
from vantage.spec.positions import Positions

ONE = Shape(width=4, heads=1, kv_heads=1, key_dim=2, value_dim=2, rotary_dim=2)


def scores_by_hand(q: Tensor, k: Tensor, w: Tensor, share: Tensor, q_pos: Positions, k_pos: Positions) -> Tensor:
    """q_i·H_i … H_(j+1) k_j for every pair, one H after the other, over the filled tokens of the query's document."""
    (B, H, T, _), G, S = q.shape, k.shape[1], k.shape[2]
    out = torch.zeros(B, H, T, S, dtype=F64)
    for b in range(B):
        for h in range(H):
            g = h * G // H
            for i in range(T):
                folded, here = q[b, h, i], q_pos.order[b, i]
                for j in sorted(range(S), key=lambda s: -int(k_pos.order[b, s])):
                    out[b, h, i, j] = folded @ k[b, g, j]
                    other = k_pos.segment is not None and k_pos.segment[b, j] != q_pos.segment[b, i]
                    if 0 <= k_pos.order[b, j] <= here and not other:
                        folded = folded - share[b, g, j, 0] * (w[b, g, j] @ folded) * w[b, g, j]
    return out


def directions_by_hand(part: HouseholderScores, made: Tensor, pos: Positions) -> Tensor:
    """w of every token: over itself and those before it in its document."""
    filters = part.filters.detach().view(part.kv_heads, -1, part.filters.shape[-1])
    w = torch.zeros_like(made)
    for b in range(len(made)):
        tokens = sorted((int(o), s) for s, o in enumerate(pos.order[b]) if o >= 0)
        for rank, (_, s) in enumerate(tokens):
            for back in range(min(rank + 1, filters.shape[-1])):
                before = tokens[rank - back][1]
                if pos.segment is None or pos.segment[b, before] == pos.segment[b, s]:
                    w[b, :, s] += filters[..., -1 - back] * made[b, :, before]
    w = torch.nn.functional.silu(w)
    return w / w.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def change_by_hand(part: HouseholderScores, q: Tensor, k: Tensor, q_pos: Positions, k_pos: Positions) -> Tensor:
    made, share = inputs_of(part, q, k, q_pos, k_pos).streams
    w = directions_by_hand(part, made.detach(), k_pos)
    plain = (q.unflatten(1, (k.shape[1], -1)) @ k[:, :, None].transpose(-1, -2)).flatten(1, 2)
    return scores_by_hand(q, k, w, share.detach(), q_pos, k_pos) - plain


def seen(q_pos: Positions, k_pos: Positions) -> Tensor:
    """Pairs that a causal kernel may look at."""
    q, k = q_pos.order[:, None, :, None], k_pos.order[:, None, None, :]
    mask = (q >= 0) & (k >= 0) & (k <= q)
    if q_pos.segment is not None:
        mask = mask & (q_pos.segment[:, None, :, None] == k_pos.segment[:, None, None, :])
    return mask.expand(-1, SHAPE.heads, -1, -1)


# ---- the formula


def test_the_worked_number(monkeypatch):
    """k = (1, 2), q = (1, 1): 3 at its own place, 1 behind a reflection at the second axis, -1 behind a projection."""
    w = torch.tensor([[0.6, 0.8], [1, 0], [0, 1]], dtype=F64)[None, None]
    share = torch.tensor([1.5, 2.0, 1.0], dtype=F64)[None, None, :, None]
    monkeypatch.setattr(HouseholderScores, "directions", lambda self, made, pos: made)
    part, pos = built(PaTH(), ONE), Positions.arange(1, 3)
    q = torch.tensor([1.0, 1.0], dtype=F64).expand(1, 1, 3, 2)
    k = torch.tensor([1.0, 2.0], dtype=F64).expand(1, 1, 3, 2)
    inputs = inputs_of(part, q.repeat(1, 1, 1, 2), k.repeat(1, 1, 1, 2), pos, pos, 1.0)
    bias = part.at(inputs._replace(q=q, k=k, streams=(w, share), own=(w, share))).value[0, 0]
    scores = 3 + bias
    torch.testing.assert_close(scores[:, 0], torch.tensor([3.0, 1.0, -1.0], dtype=F64))
    torch.testing.assert_close(scores.diagonal(), torch.full((3,), 3.0, dtype=F64))


def test_two_reflections_for_each_token_are_rope(monkeypatch):
    """A rotation by θ is a reflection at one line after one at another, half of θ away: every second token is a key."""
    theta, T = 0.7, 12
    monkeypatch.setattr(HouseholderScores, "directions", lambda self, made, pos: made)
    angles = torch.tensor([0.0, theta / 2], dtype=F64).repeat(T // 2)
    w = torch.stack([angles.cos(), angles.sin()], -1)[None, None]
    share = torch.full((1, 1, T, 1), 2.0, dtype=F64)
    part, pos = built(PaTH(), ONE), Positions.arange(1, T)
    q, k = vectors(1, 1, T, 2, 1), vectors(1, 1, T, 2, 2)
    inputs = inputs_of(part, q.repeat(1, 1, 1, 2), k.repeat(1, 1, 1, 2), pos, pos, 1.0)
    got = (q @ k.transpose(-1, -2) + part.at(inputs._replace(q=q, k=k, streams=(w, share))).value)[0, 0]
    for i in range(1, T, 2):
        for j in range(1, i + 1, 2):
            turn = (i - j) // 2 * theta
            turned = torch.tensor([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]], dtype=F64)
            torch.testing.assert_close(got[i, j], q[0, 0, i] @ turned @ k[0, 0, j])


CASES = {
    "equal rows": Positions.arange(2, 7),
    "padded left": Positions.rows([7, 3], pad="left"),
    "padded right": Positions.rows([7, 3]),
    "packed": Positions.packed([[3, 4], [1, 5]], width=7),
    "stretched": Positions.of(torch.tensor([[0, 10, 20, 30, 40, 50, 60]] * 2), order=torch.arange(7).expand(2, 7)),
}


@pytest.mark.parametrize("block", [1, 2, 3, 32])
@pytest.mark.parametrize("case", CASES)
def test_every_pair_is_the_product(case, block, monkeypatch):
    monkeypatch.setattr(path_attention, "BLOCK", block)
    part, pos = built(PaTH(rank=5)), CASES[case]
    q, k = vectors(2, 4, 7, 6, 1), vectors(2, 2, 7, 6, 2)
    got = bias_of(part, pos, pos, q=q, k=k, scale=0.4)
    shown = seen(pos, pos)
    torch.testing.assert_close(got[shown], 0.4 * change_by_hand(part, q, k, pos, pos)[shown])


@settings(deadline=None, max_examples=10)
@given(positions(max_width=5), positions(max_width=7))
def test_any_queries_and_keys(q_pos, k_pos):
    part = built(PaTH(rank=5, taps=2))
    q, k = vectors(2, 4, q_pos.shape[1], 6, 1), vectors(2, 2, k_pos.shape[1], 6, 2)
    shown = seen(q_pos, k_pos)
    got = bias_of(part, q_pos, k_pos, q=q, k=k, scale=1.0)
    torch.testing.assert_close(got[shown], change_by_hand(part, q, k, q_pos, k_pos)[shown])


@settings(deadline=None, max_examples=10)
@given(st.data())
def test_documents_wherever_their_keys_are_kept(data):
    part, pos = built(PaTH(rank=5)), CASES["packed"]
    index = torch.tensor(data.draw(st.permutations(range(7))))
    there = permuted(pos, index)
    q, k = vectors(2, 4, 7, 6, 1), vectors(2, 2, 7, 6, 2)
    want = bias_of(part, pos, pos, q=q, k=k)[..., index]
    got = bias_of(part, pos, there, q=q, k=k[:, :, index])
    shown = seen(pos, there)
    torch.testing.assert_close(got[shown], want[shown])


@pytest.mark.sampled
def test_more_keys_than_a_block_and_queries_further_on():
    """Blocks that no early query sees are left out where the host knows it; the result is the same."""
    part, S = built(PaTH(rank=5)), 2 * path_attention.BLOCK + 7
    q_pos, k_pos = Positions.arange(2, 45, start=S - 45), Positions.arange(2, S)
    q, k = vectors(2, 4, 45, 6, 1), vectors(2, 2, S, 6, 2)
    got = bias_of(part, q_pos, k_pos, q=q, k=k, scale=1.0)
    shown = seen(q_pos, k_pos)
    torch.testing.assert_close(got[shown], change_by_hand(part, q, k, q_pos, k_pos)[shown])
    q_blind, k_blind = unread(q_pos.pos), unread(k_pos.pos)
    for q_side, k_side in ((q_blind, k_blind), (q_blind, k_pos), (q_pos, k_blind)):
        torch.testing.assert_close(got, bias_of(part, q_side, k_side, q=q, k=k, scale=1.0))
    assert not got[(k_pos.order[:, None, None] > q_pos.order[:, None, :, None]).expand_as(got)].any()


def test_some_queries_at_a_time(monkeypatch):
    """The first ones stand before whole blocks of keys, which they cannot see."""
    monkeypatch.setattr(path_attention, "BLOCK", 2)
    part, pos = built(PaTH(rank=5)), Positions.arange(2, 7)
    bias = part.at(inputs_of(part, vectors(2, 4, 7, 6, 1), vectors(2, 2, 7, 6, 2), pos, pos))
    pieces = [bias.of_queries(slice(start, stop)) for start, stop in ((0, 1), (1, 4), (4, 7))]
    torch.testing.assert_close(torch.cat(pieces, 2), bias.value)


def test_a_softcap_caps_the_whole_score():
    part, pos, cap = built(PaTH(rank=5)), Positions.arange(2, 7), 0.8
    q, k = vectors(2, 4, 7, 6, 1), vectors(2, 2, 7, 6, 2)
    plain = 0.3 * (q.unflatten(1, (2, 2)) @ k[:, :, None].transpose(-1, -2)).flatten(1, 2)
    inputs = inputs_of(part, q, k, pos, pos)
    change = part.at(inputs).value
    capped = part.at(inputs._replace(softcap=cap)).value
    torch.testing.assert_close(
        cap * torch.tanh(plain / cap) + capped, cap * torch.tanh((plain + change) / cap), rtol=1e-9, atol=1e-9
    )


def test_no_keys_are_no_bias():
    part, q, k = built(PaTH()), vectors(1, 4, 2, 6), vectors(1, 2, 0, 6)
    got = part.at(inputs_of(part, q, k, Positions.arange(1, 2), Positions.arange(1, 0)))
    assert got.value.shape == (1, 4, 2, 0)


def test_what_is_kept():
    part, x = built(PaTH(rank=5)), vectors(2, 1, 5, SHAPE.width)[:, 0]
    made, share = part.keep(x, Positions.arange(2, 5))
    low = x @ part.down.weight.T @ part.up.weight.T
    torch.testing.assert_close(made, low.view(2, 5, 2, 6).transpose(1, 2))
    chosen = 2 * torch.sigmoid(x @ part.share.weight.T + part.share.bias)
    torch.testing.assert_close(share[..., 0], chosen.transpose(1, 2))
    assert PaTH().streams(SHAPE) == (KeptStream(2, 6), KeptStream(2, 1, wide=True))


def test_how_it_begins():
    torch.manual_seed(0)
    part = PaTH(rank=64).build(Shape(256, 4, 4, 64, 64, 64))
    for weight in (part.down.weight, part.up.weight, part.share.weight):
        assert 0.018 < weight.std() < 0.022
    assert not part.share.bias.any()  # β = 1
    assert 0.54 < part.filters.std() < 0.61  # 3 taps: 0.577


# ---- gradients


@pytest.mark.parametrize("case", ["padded left", "packed"])
def test_gradients_of_its_parameters(case, monkeypatch):
    monkeypatch.setattr(path_attention, "BLOCK", 3)
    part, pos = built(PaTH(rank=2)), CASES[case]
    q, k = vectors(2, 4, 7, 6, 1), vectors(2, 2, 7, 6, 2)
    shown = seen(pos, pos)
    check_gradients(part, lambda: bias_of(part, unread_like(pos), unread_like(pos), q=q, k=k)[shown])


def unread_like(pos: Positions) -> Positions:
    return Positions.of(pos.pos, order=pos.order, segment=pos.segment)


def test_gradients_of_queries_and_keys(monkeypatch):
    monkeypatch.setattr(path_attention, "BLOCK", 3)
    part = built(PaTH(rank=2), ONE)
    streams = tuple(x.detach() for x in part.keep(vectors(1, 1, 5, 4)[:, 0], Positions.arange(1, 5)))

    def bias(q: Tensor, k: Tensor, made: Tensor, share: Tensor) -> Tensor:
        pos = Positions.arange(1, 5)
        inputs = inputs_of(part, q.repeat(1, 1, 1, 2), k.repeat(1, 1, 1, 2), pos, pos)
        return part.at(inputs._replace(q=q, k=k, streams=(made, share))).value

    given = (vectors(1, 1, 5, 2, 1), vectors(1, 1, 5, 2, 2), *streams)
    assert torch.autograd.gradcheck(bias, [x.clone().requires_grad_() for x in given])


def test_gradients_reach_everything():
    model = vt.build(vt.decoder(vocab=11, width=8, layers=2, heads=2, position="path"))
    model(torch.arange(6)[None]).square().sum().backward()
    own = [p for name, p in model.named_parameters() if "scorer.bias" in name]
    assert len(own) == 2 * 5
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in own)


# ---- what a cache keeps


def model(dtype=F64, **options) -> vt.Model:
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position=PaTH(rank=6), **options)
    return sharpen(vt.build(spec)).to(dtype)


def some(width: int, seed: int = 0, rows: int = 2) -> Tensor:
    return torch.randint(19, (rows, width), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "paged", "ring"])
@pytest.mark.parametrize("taps", [2, 3, 5])
def test_a_rolled_back_row_is_as_if_nothing_had_come(kind, taps):
    options = {"mask": vt.Causal() & vt.SameSegment() & vt.Window(4)} if kind == "ring" else {}
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position=PaTH(6, taps), **options)
    m, tokens = sharpen(vt.build(spec)).double(), some(14)
    cache = m.new_cache(2, kind=kind, draft=4 if kind == "ring" else None)
    m(tokens[:, :9], cache=cache)
    m(tokens[:, :3], cache=cache)  # other tokens, with other reflections
    cache.crop(9)
    rest = torch.cat([m(tokens[:, t : t + 1], cache=cache) for t in range(9, 14)], 1)
    torch.testing.assert_close(rest, m(tokens)[:, 9:], rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("taps", [2, 3, 5])
def test_a_ring_keeps_what_the_convolution_reads(taps):
    """A direction is made of ``taps`` tokens, of which ``taps`` - 2 may stand before the oldest key in the window."""
    mask = vt.Causal() & vt.SameSegment() & vt.Window(4)
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4, position=PaTH(6, taps), mask=mask)
    m, tokens = sharpen(vt.build(spec)).double(), some(15)
    assert spec.caches[0][0].before == taps - 2
    cache = m.new_cache(2, kind="ring")
    out = torch.cat([m(part, cache=cache) for part in tokens.split([2, 1, 1, 6, 1, 4], 1)], 1)
    torch.testing.assert_close(out, m(tokens), rtol=1e-9, atol=1e-9)
    assert cache.layers[0].store.tensors[0].shape[2] == 4 + taps - 2 + 1  # one place that nobody reads


@torch.no_grad()
def test_unseen_tokens_between_count():
    """The last query sees its neighbour and the first token. A token that it does not see still reflects the first."""
    m = model(mask=vt.Causal() & vt.SameSegment() & (vt.Window(2) | vt.Prefix(1)))
    pos, part = Positions.arange(2, 9), m.blocks[0].sublayers[0]
    x = m.blocks[0].steps[0].before(m.embed(some(9), pos, None))
    q, k, _ = part.project(x)
    other = x.clone()
    other[:, 4] += 1
    given = BiasInputs(q, q, k, pos, pos, 0.3)
    one, two = (part.scorer.bias.at(given._replace(streams=part.scorer.streams(h, pos))).value for h in (x, other))
    assert (one - two)[:, :, 8, 0].abs().min() > 1e-6
    torch.testing.assert_close(one[:, :, 8, 7:], two[:, :, 8, 7:])
    cache = m.new_cache(2, kind="paged")
    stepped = torch.cat([m(token, cache=cache) for token in some(9).split(1, 1)], 1)
    torch.testing.assert_close(stepped, m(some(9)), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_padding_reflects_nothing():
    m, tokens = model(), some(8, 1, rows=1)
    padded = torch.cat([tokens.new_zeros(1, 3), tokens], 1)
    mask = torch.arange(11)[None] >= 3
    torch.testing.assert_close(m(padded, mask=mask)[:, 3:], m(tokens), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_document_does_not_know_what_lies_before_it():
    m, tokens = model(), some(10, 2, rows=1)
    packed = m(tokens, positions=Positions.packed([[4, 6]]))
    torch.testing.assert_close(packed[:, 4:], m(tokens[:, 4:]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(packed[:, :4], m(tokens[:, :4]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["quantised", "low-bit"])
def test_a_cache_that_rounds_leaves_directions_and_shares_alone(kind):
    m, tokens = model(torch.float32), some(5)
    cache = m.new_cache(2, kind=kind)
    m(tokens, cache=cache)
    x = m.blocks[0].steps[0].before(m.embed(tokens, Positions.arange(2, 5), None))
    kept = m.blocks[0].sublayers[0].scorer.streams(x, Positions.arange(2, 5))
    for got, want in zip(cache.layers[0].view().streams, kept, strict=True):
        torch.testing.assert_close(got, want)


@torch.no_grad()
def test_half_precision_keeps_shares_in_float32():
    m, tokens = model(torch.bfloat16), some(9)
    cache = m.new_cache(2)
    m(tokens, cache=cache)
    made, share = cache.layers[1].view().streams
    assert (made.dtype, share.dtype) == (torch.bfloat16, torch.float32)


def test_what_it_costs():
    spec, plain = (vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position=p) for p in ("path", "none"))
    cache, bare = (vt.build(s).new_cache(capacity=10) for s in (spec, plain))
    assert cache.bytes - bare.bytes == 2 * 10 * 2 * (8 + 1) * 4  # layers, tokens, key heads, w and β, float32


def test_what_does_not_fit():
    with pytest.raises(Refused, match="PaTH reflects keys on the way"):
        vt.encoder(vocab=9, width=8, layers=1, heads=2, position="path")
    latent = vt.Latent(2, kv_rank=4, nope_dim=4, rope_dim=2, value_dim=4, norm=vt.RMSNorm())
    with pytest.raises(Refused, match="only 2 of 6 numbers of a key"):
        vt.build(vt.decoder(vocab=9, width=8, layers=1, attention=latent, position="path"))
    with pytest.raises(Refused, match="looks at every key before a query"):
        model().new_cache(kind="sinks")
    for rank, taps in ((0, 3), (4, 1)):
        with pytest.raises(BadInput, match=f"rank={rank}, taps={taps}"):
            PaTH(rank, taps)
    assert PaTH(rank=1, taps=2).before == 0
    assert only_bias(PaTH().parts(causal=True)) == PaTH()
