"""Multi-head, multi-query and grouped-query attention, and what the modules ask of a kernel."""

import pytest
import torch

from tests.attention.helpers import F64, Listing, attention, check_gradients, run, vectors
from vantage.attention import GroupedQuery, LengthTemperature, QKNorm
from vantage.errors import BadInput, Refused
from vantage.model.norms import LayerNorm, RMSNorm
from vantage.position import T5, Alibi, CoPE, Fire, Kerple, Rope, Shaw, Shifted, TransformerXL, XPos
from vantage.spec.masks import Causal, Everything, Window
from vantage.spec.model import CacheShape
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import EMPTY, Positions


def by_hand(module, x, causal=True):
    """The formula, head by head."""
    s = module.shape
    H, G, d, e = s.heads, s.kv_heads, s.key_dim, s.value_dim
    W = module.qkv.weight.T
    b = 0 if module.qkv.bias is None else module.qkv.bias
    mixed = x @ W + b
    q, k, v = mixed[..., : H * d], mixed[..., H * d : (H + G) * d], mixed[..., (H + G) * d :]
    heads = []
    for h in range(H):
        g = h // (H // G)
        qh, kh, vh = q[..., h * d : (h + 1) * d], k[..., g * d : (g + 1) * d], v[..., g * e : (g + 1) * e]
        scores = qh @ kh.mT / d**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ vh)
    out = torch.cat(heads, -1) @ module.out.weight.T
    return out if module.out.bias is None else out + module.out.bias


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
def test_it_is_the_formula(kv_heads, causal, kernel):
    config = GroupedQuery(4, kv_heads, head_dim=3, value_dim=5, bias=True, out_bias=True)
    module, x = attention(config, 8, Causal() if causal else Everything()), vectors(2, 6, 8)
    with torch.no_grad():
        torch.testing.assert_close(run(module, x, kernel=kernel), by_hand(module, x, causal))


def test_widths_of_the_projections():
    module = attention(GroupedQuery(4, 2, head_dim=3, value_dim=5), 8)
    assert module.qkv.weight.shape == (4 * 3 + 2 * 3 + 2 * 5, 8)
    assert module.out.weight.shape == (8, 4 * 5)
    assert module.qkv.bias is None
    assert module.out.bias is None


def test_biases_are_where_they_were_asked_for():
    module = attention(GroupedQuery(2, bias=True), 4)
    assert module.qkv.bias is not None
    assert module.out.bias is None
    module = attention(GroupedQuery(2, out_bias=True), 4)
    assert module.qkv.bias is None
    assert module.out.bias is not None


def test_shapes():
    assert GroupedQuery(4).shape(12) == Shape(12, 4, 4, 3, 3, 3)
    assert GroupedQuery(4, 2, head_dim=6).shape(12) == Shape(12, 4, 2, 6, 6, 6)
    assert GroupedQuery(4, 1, head_dim=6, value_dim=8).shape(13) == Shape(13, 4, 1, 6, 8, 6)
    assert GroupedQuery(4, 2, head_dim=6, value_dim=8).cache_shape(12) == CacheShape(2, 6, 8)
    assert GroupedQuery(1).shape(12) == Shape(12, 1, 1, 12, 12, 12)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (GroupedQuery(4, 3), "4 heads over 3 key/value heads: the second must divide the first"),
        (GroupedQuery(2, 4), "2 heads over 4 key/value heads"),
        (GroupedQuery(4, 0), "4 heads over 0 key/value heads"),
        (GroupedQuery(0), "0 heads over 0 key/value heads"),
        (GroupedQuery(5), "width 12 does not divide into 5 heads: change one, or say head_dim="),
    ],
)
def test_heads_that_do_not_divide_are_refused(config, says):
    with pytest.raises(BadInput, match=says):
        config.shape(12)


def test_among_how_many_processes_heads_divide():
    assert GroupedQuery(12, 4).divided(2, 24) == GroupedQuery(6, 2, head_dim=2, value_dim=2)
    assert GroupedQuery(12, 4).divided(12, 24) == GroupedQuery(1, 1, head_dim=2, value_dim=2)
    with pytest.raises(Refused, match=r"12 heads over 4 key/value heads .* use 1 or 2 or 4 or 12 of them"):
        GroupedQuery(12, 4).divided(3, 24)


def test_a_head_width_that_is_said_need_not_divide():
    assert GroupedQuery(5, head_dim=4).shape(12).key_dim == 4


# ---- through a cache


@pytest.mark.parametrize(
    "encoding",
    [
        None,
        Rope(),
        Rope(pairing="adjacent"),
        XPos(),
        Alibi(),
        T5(8, 16),
        Shaw(3),
        TransformerXL(),
        Kerple("log"),
        Fire(),
        CoPE(5),
        Shifted(),
    ],
)
@pytest.mark.parametrize("window", [None, 3])
def test_token_by_token_is_the_whole(encoding, window):
    parts = Parts() if encoding is None else encoding.parts(causal=True)
    mask = Causal() if window is None else Causal() & Window(window)
    module, x = attention(GroupedQuery(4, 2), 16, mask, parts=parts), vectors(2, 7, 16)
    cache = Listing()
    with torch.no_grad():
        whole = run(module, x)
        steps = [
            run(module, x[:, t : t + n], pos=Positions.arange(2, n, t), caches=[cache])
            for t, n in ((0, 3), (3, 2), (5, 1), (6, 1))
        ]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_it_reads_positions_and_not_places():
    """Tokens kept in another arrangement, at the same positions, give the same."""
    module, x = attention(GroupedQuery(2), 8, parts=Rope().parts(causal=True)), vectors(1, 5, 8)
    index = torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        straight = run(module, x)
        mixed = run(module, x[:, index], pos=Positions.of(index))
    torch.testing.assert_close(mixed, straight[:, index])


def test_each_layer_reads_its_own_cache():
    config = GroupedQuery(2)
    from tests.attention.helpers import build_context, sharpen

    module = sharpen(config.build(4, build_context(index=1)).to(F64))
    first, second = Listing(), Listing()
    run(module, vectors(1, 3, 4), caches=[first, second])
    assert first.held is None
    assert second.held is not None
    assert second.held.k.shape == (1, 2, 3, 2)


def test_keys_are_kept_turned_and_values_never():
    module, x = attention(GroupedQuery(2), 8, parts=Rope().parts(causal=True)), vectors(1, 3, 8)
    cache = Listing()
    run(module, x, caches=[cache])
    _, k, v = module.project(x)
    assert cache.held is not None
    assert torch.equal(cache.held.v, v)
    assert torch.equal(cache.held.k[:, :, 0], k[:, :, 0])  # position 0 is not turned
    assert not torch.allclose(cache.held.k[:, :, 1:], k[:, :, 1:])


def test_transforms_act_in_their_order():
    """q/k norm first, then RoPE: the other way round differs, since the norm has weights per dimension."""
    norm, rope = QKNorm(RMSNorm()), Rope()
    x = vectors(1, 4, 8)
    one = attention(GroupedQuery(2), 8, parts=Parts(qk=(norm, rope)))
    other = attention(GroupedQuery(2), 8, parts=Parts(qk=(rope, norm)))
    other.load_state_dict({name.replace("qk.0", "qk.1"): value for name, value in one.state_dict().items()})
    with torch.no_grad():
        q, k, _ = one.project(x)
        pos = Positions.arange(1, 4)
        normed = one.qk[0].query(q, pos), one.qk[0].key(k, pos)
        scores = one.qk[1].query(normed[0], pos) @ one.qk[1].key(normed[1], pos).mT / 2
        seen = []
        run(one, x, watch=lambda site, i, view, need, done: seen.append(done.weights))
        masked = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        torch.testing.assert_close(seen[0], masked.softmax(-1))
        assert not torch.allclose(run(one, x), run(other, x))


def test_a_padded_row_is_the_row_alone():
    module, x = attention(GroupedQuery(4, 2), 8, parts=Alibi().parts(causal=True)), vectors(2, 5, 8)
    pos = Positions.of(torch.tensor([[EMPTY, EMPTY, 0, 1, 2], [0, 1, 2, 3, 4]]))
    with torch.no_grad():
        both, alone = run(module, x, pos=pos), run(module, x[:1, 2:])
    torch.testing.assert_close(both[:1, 2:], alone)
    torch.testing.assert_close(both[1:], run(module, x[1:]))
    assert (both[0, :2] == 0).all()  # an empty place sees nothing, and there is no bias to add


# ---- gradients


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (GroupedQuery(2, 1, value_dim=3, bias=True, out_bias=True), Parts()),
        (GroupedQuery(2, 2), Rope().parts(causal=True)),
        (GroupedQuery(2, 2), Parts(qk=(QKNorm(RMSNorm()),))),
        (GroupedQuery(2, 2), Parts(qk=(QKNorm(LayerNorm()),))),
        (GroupedQuery(2, 1), Parts(qk=(LengthTemperature(0.3, 2.0),))),
    ],
)
def test_gradcheck(config, parts, kernel):
    module = attention(config, 4, Causal() & Window(2), parts=parts)
    pos = torch.tensor([[0, 1, 2], [EMPTY, 0, 1]])
    check_gradients(module, lambda m, x: run(m, x, pos=Positions.of(pos), kernel=kernel), vectors(2, 3, 4))


@pytest.mark.parametrize("encoding", [T5(4, 8), Shaw(1), TransformerXL(), Kerple("power"), CoPE(3), Fire(hidden=2)])
def test_gradcheck_through_an_encoding(encoding):
    module = attention(GroupedQuery(2, 1), 4, parts=encoding.parts(causal=True))

    def call(m, x):
        scorer = m.scorer
        assert isinstance(scorer.bias, torch.nn.Module)  # so that its parameters are checked too
        return run(m, x)

    check_gradients(module, call, vectors(1, 3, 4))


def test_values_are_normed_and_keys_are_not():
    """Scaled input: scores change, the values that are weighted do not."""
    module, plain = attention(GroupedQuery(2, 1, value_norm=RMSNorm(0.0)), 4), attention(GroupedQuery(2, 1), 4)
    plain.load_state_dict(module.state_dict(), strict=False)
    x = vectors(1, 1, 4)  # one token: its weight is 1 whatever its score
    v = plain.project(x)[2]
    torch.testing.assert_close(run(module, 7 * x), run(module, x))
    normed = v / v.square().mean(-1, keepdim=True).sqrt() * module.value_norm.weight
    heads = normed.expand(-1, 2, -1, -1).transpose(1, 2).flatten(2)
    torch.testing.assert_close(run(module, x), module.out(heads))
    with pytest.raises(Refused, match="value_norm is for self-attention only"):
        GroupedQuery(2, value_norm=RMSNorm()).build_cross(4, None)


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_clip_that_would_leave_nothing_is_refused(clip):
    with pytest.raises(BadInput, match="clip="):
        GroupedQuery(4, clip=clip)
