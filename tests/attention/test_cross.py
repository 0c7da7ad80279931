"""Cross-attention: queries from one sequence, keys and values from another."""

import pytest
import torch

from tests.attention.helpers import Listing, attention, check_gradients, context, run, vectors
from vantage.attention import GroupedQuery
from vantage.spec.masks import Causal
from vantage.spec.model import Scores
from vantage.spec.normalisers import Softmax
from vantage.spec.parts import EncoderOutput
from vantage.spec.positions import Positions


def memory(S=5, B=2, width=8, seed=1, pos=None):
    return EncoderOutput(vectors(B, S, width, seed=seed), Positions.arange(B, S) if pos is None else pos)


def by_hand(module, x, source):
    s = module.shape
    H, G, d, e = s.heads, s.kv_heads, s.key_dim, s.value_dim
    q, kv = module.q(x), module.kv(source)
    k, v = kv[..., : G * d], kv[..., G * d :]
    heads = []
    for h in range(H):
        g = h // (H // G)
        weights = (q[..., h * d : (h + 1) * d] @ k[..., g * d : (g + 1) * d].mT / d**0.5).softmax(-1)
        heads.append(weights @ v[..., g * e : (g + 1) * e])
    return module.out(torch.cat(heads, -1))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
def test_it_is_the_formula(kv_heads, kernel):
    config = GroupedQuery(4, kv_heads, head_dim=3, value_dim=5, bias=True, out_bias=True)
    module, x, source = attention(config, 8, cross=True), vectors(2, 3, 8), memory()
    with torch.no_grad():
        got = run(module, x, memory=source, kernel=kernel)
        torch.testing.assert_close(got, by_hand(module, x, source.hidden))


def test_no_query_is_too_early_to_see_the_source():
    """The queries' positions have nothing to say about the source's."""
    module, x, source = attention(GroupedQuery(2), 8, cross=True), vectors(2, 3, 8), memory()
    with torch.no_grad():
        early = run(module, x, memory=source)
        late = run(module, x, pos=Positions.arange(2, 3, 100), memory=source)
    assert torch.equal(early, late)


def test_the_source_is_projected_once():
    module, source = attention(GroupedQuery(4, 2), 8, cross=True), memory()
    calls = []
    module.kv.register_forward_hook(lambda *a: calls.append(1))
    x, cache = vectors(2, 3, 8), Listing()
    with torch.no_grad():
        first = run(module, x[:, :1], memory=source, cross=[cache])
        rest = [run(module, x[:, t : t + 1], pos=Positions.arange(2, 1, t), cross=[cache]) for t in (1, 2)]
        whole = run(module, x, memory=source)
    torch.testing.assert_close(torch.cat([first, *rest], 1), whole)
    assert len(calls) == 2  # once through the cache, once without


def test_padding_of_the_source_is_not_seen():
    module, x = attention(GroupedQuery(2), 8, cross=True), vectors(2, 3, 8)
    source = memory(pos=Positions.rows([5, 2], width=5))
    with torch.no_grad():
        both = run(module, x, memory=source)
        alone = run(module, x[1:], memory=EncoderOutput(source.hidden[1:, :2], Positions.arange(1, 2)))
    torch.testing.assert_close(both[1:], alone)


def test_it_looks_at_its_own_layers_cache_and_says_where_it_is():
    from tests.attention.helpers import build_context, sharpen

    module = sharpen(GroupedQuery(2).build_cross(8, build_context(Causal(), index=1)).double())
    seen, caches = [], [Listing(), Listing()]
    ctx = context(Positions.arange(1, 2), cross=caches, memory=memory(B=1), watch=lambda *a: seen.append(a[:2]))
    module(vectors(1, 2, 8), ctx)
    assert caches[0].held is None
    assert caches[1].held is not None
    assert seen == [("cross", 1)]


def test_transforms_act_on_both_sides_at_their_own_positions():
    from vantage.position import Rope

    module = attention(GroupedQuery(2), 8, cross=True, parts=Rope().parts(causal=False))
    x, source = vectors(1, 2, 8), memory(B=1)
    with torch.no_grad():
        here = run(module, x, memory=source)
        moved = EncoderOutput(source.hidden, Positions.arange(1, 5, 7))
        there = run(module, x, pos=Positions.arange(1, 2, 7), memory=moved)
        torch.testing.assert_close(here, there)  # the distance is what counts
        assert not torch.allclose(here, run(module, x, memory=moved))


@pytest.mark.parametrize("scores", [Scores(), Scores(sinks=True, softcap=2.0, normalise=Softmax(0.5))])
def test_gradcheck(scores):
    module = attention(GroupedQuery(2, 1, value_dim=3, bias=True, out_bias=True, scores=scores), 4, cross=True)

    def call(m, x, hidden):
        return run(m, x, memory=EncoderOutput(hidden, Positions.rows([3, 1], width=3)))

    check_gradients(module, call, vectors(2, 2, 4), vectors(2, 3, 4, seed=1))
