"""Latent attention: two forms of one function."""

import pytest
import torch

from tests.attention.helpers import Listing, attention, build_context, check_gradients, run, vectors
from vantage.attention import GroupedQuery, Latent, QKNorm
from vantage.errors import BadInput, Refused
from vantage.model.norms import RMSNorm
from vantage.position import T5, Alibi, CoPE, Fire, Kerple, Rope, Shaw, Shifted, TransformerXL, XPos
from vantage.spec.masks import Causal, Everything, Window
from vantage.spec.model import CacheShape, Scores
from vantage.spec.normalisers import Softmax
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import EMPTY, Positions

CONFIG = Latent(heads=3, kv_rank=6, nope_dim=4, rope_dim=2, value_dim=5, norm=RMSNorm(), q_rank=7, bias=True)
DIRECT = Latent(heads=3, kv_rank=6, nope_dim=4, rope_dim=2, value_dim=5, norm=RMSNorm())


def forced(module, absorbed):
    module.absorbing_is_cheaper = lambda T, S: absorbed
    return module


def by_hand(module, x, turn):
    """DeepSeek-V2, equations 37 to 47, head by head; ``turn(vector, position)`` is RoPE."""
    c = module.config
    q = module.q_up(module.q_norm(module.q_down(x)))
    down = module.kv_down(x)
    latent, k_rot = module.kv_norm(down[..., : c.kv_rank]), turn(down[..., c.kv_rank :])
    per_head, outs = c.nope_dim + c.rope_dim, []
    for h in range(c.heads):
        mine = q[..., h * per_head : (h + 1) * per_head]
        q_nope, q_rot = mine[..., : c.nope_dim], turn(mine[..., c.nope_dim :])
        k_nope, v = latent @ module.k_up[h].T, latent @ module.v_up[h].T
        scores = (q_nope @ k_nope.mT + q_rot @ k_rot.mT) / per_head**0.5
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        outs.append(scores.softmax(-1) @ v)
    return module.out(torch.cat(outs, -1))


@pytest.mark.parametrize("config", [CONFIG, DIRECT])
@pytest.mark.parametrize("absorbed", [True, False])
@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_it_is_the_papers_formula(config, absorbed, kernel):
    rope = Rope(pairing="adjacent")
    module = forced(attention(config, 8, parts=rope.parts(causal=True)), absorbed)
    x, rotation = vectors(2, 5, 8), module.qk[0]
    with torch.no_grad():
        wanted = by_hand(module, x, lambda t: rotation.query(t[:, None], Positions.arange(2, 5))[:, 0])
        torch.testing.assert_close(run(module, x, kernel=kernel), wanted)


@pytest.mark.parametrize(
    "encoding",
    [None, Rope(), XPos(), Alibi(), T5(8, 16), Shaw(2), TransformerXL(), Kerple("log"), Fire(), CoPE(4), Shifted()],
)
@pytest.mark.parametrize("scores", [Scores(), Scores(softcap=1.5, sinks=True, normalise=Softmax(0.7))])
def test_both_forms_are_one_function(encoding, scores):
    from dataclasses import replace

    parts = Parts() if encoding is None else encoding.parts(causal=True)
    module = attention(replace(CONFIG, scores=scores), 8, Causal() & Window(3), parts=parts)
    x = vectors(2, 5, 8)
    pos = Positions.of(torch.tensor([[0, 1, 2, 3, 4], [EMPTY, 0, 1, 2, EMPTY]]))
    with torch.no_grad():
        expanded = run(forced(module, False), x, pos=pos)
        absorbed = run(forced(module, True), x, pos=pos)
    torch.testing.assert_close(absorbed, expanded)


def test_token_by_token_is_the_whole():
    module, x = attention(CONFIG, 8, parts=Rope().parts(causal=True)), vectors(2, 6, 8)
    cache = Listing()
    with torch.no_grad():
        whole = run(module, x)
        steps = [
            run(module, x[:, t : t + n], pos=Positions.arange(2, n, t), caches=[cache])
            for t, n in ((0, 4), (4, 1), (5, 1))
        ]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    assert cache.held is not None
    assert cache.held.k.shape == (2, 1, 6, 8)  # one latent of 6 and one rotary key of 2 a token
    assert torch.equal(cache.held.v, cache.held.k[..., :6])  # the value is the front of the key


@torch.no_grad()
def test_queries_and_keys_are_those_of_every_head():
    """As the expanded form has them, before any position acts on them."""
    module, x = attention(DIRECT, 8), vectors(2, 5, 8)
    q, k = module.queries_and_keys(x)
    down = module.kv_down(x)
    latent, shared = module.kv_norm(down[..., :6]), down[..., 6:]
    for h in range(3):
        torch.testing.assert_close(q[:, h], module.q_up(x)[..., 6 * h : 6 * h + 6])
        torch.testing.assert_close(k[:, h], torch.cat([latent @ module.k_up[h].T, shared], -1))


def test_what_is_kept_is_small():
    assert CONFIG.cache_shape(8) == CacheShape(1, 8, 6, single=True)
    assert CONFIG.shape(8) == Shape(8, 3, 3, 6, 5, rotary_dim=2)


def test_a_lowered_step_turns_the_rotary_part_of_each_query_head_and_of_the_one_key():
    turned = []

    class Program:
        """Numbers buffers, and writes down what is turned."""

        def __init__(self):
            self.buffers = 0

        def buffer(self, *of):
            self.buffers += 1
            return self.buffers

        linear = lower = attend_latent = buffer

        def transform(self, part, queries, keys):
            turned.append((queries, keys))

    module = attention(DIRECT, 8, parts=Rope().parts(causal=True))
    module.native(Program(), 0, None)
    ((queries, keys),) = turned
    assert queries[1:] == (4, 3, 2)  # after 4 columns without rotation, of 3 heads, 2 columns
    assert keys[1:] == (6, 1, 2)  # after the latent, of one


def test_the_scale_is_of_the_whole_key():
    seen = []
    for absorbed in (True, False):
        module = forced(attention(CONFIG, 8), absorbed)
        run(module, vectors(1, 3, 8), watch=lambda site, i, view, need, done: seen.append((site, i, need.scale)))
    assert seen == 2 * [("self", 0, 6**-0.5)]


@pytest.mark.parametrize("sizes", [(512, 128, 64, 128), (16, 8, 4, 6), (4, 12, 2, 20)])
def test_the_form_with_fewer_multiplications_runs(sizes):
    """Counted per head: absorbed, q and the output pass through the up-projections; expanded, every key and value."""
    rank, nope, rope, value = sizes
    module = attention(Latent(2, rank, nope, rope, value, norm=RMSNorm()), 8)
    for T in (*range(1, 40), 200):
        for S in range(T, T + 300, 7):
            absorbed = T * nope * rank + T * S * (rank + rope) + T * S * rank + T * rank * value
            expanded = S * rank * nope + S * rank * value + T * S * (nope + rope) + T * S * value
            assert module.absorbing_is_cheaper(T, S) == (absorbed < expanded)


def test_which_form_runs_when():
    module = attention(Latent(2, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128, norm=RMSNorm()), 8)
    assert module.absorbing_is_cheaper(1, 4096)
    assert not module.absorbing_is_cheaper(4096, 4096)
    even = attention(Latent(2, kv_rank=4, nope_dim=4, rope_dim=2, value_dim=4, norm=RMSNorm()), 8)
    assert not even.absorbing_is_cheaper(5, 5)  # it is all the same


def test_a_value_bias_needs_the_values_of_every_head():
    """Shaw's value term is as wide as a head's value, which the absorbed form never makes."""
    module = forced(attention(CONFIG, 8, parts=Shaw(2).parts(causal=True)), True)
    widths = []
    run(module, vectors(1, 3, 8), watch=lambda site, i, view, need, done: widths.append(tuple(view.v.shape)))
    assert widths == [(1, 3, 3, 5)]
    assert attention(CONFIG, 8, parts=Shaw(2, values=False).parts(causal=True)).absorbable


def test_a_decode_step_is_absorbed_and_a_prefill_expanded():
    module = attention(Latent(2, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8, norm=RMSNorm()), 8)
    widths, cache = [], Listing()

    def watch(site, i, view, need, done):
        widths.append(view.k.shape[1])

    run(module, vectors(1, 32, 8), caches=[cache], watch=watch)
    run(module, vectors(1, 1, 8), pos=Positions.arange(1, 1, 32), caches=[cache], watch=watch)
    run(module, vectors(1, 1, 8), watch=watch)  # a single token gains nothing
    assert widths == [2, 1, 2]  # expanded: a key head each; absorbed: all share the latents


@pytest.mark.parametrize(
    "change", [{"rope_dim": 3}, {"rope_dim": -2}, {"heads": 0}, {"kv_rank": 0}, {"nope_dim": 0}, {"value_dim": 0}]
)
def test_sizes_that_cannot_be(change):
    from dataclasses import replace

    with pytest.raises(BadInput, match="sizes must be positive and rope_dim even"):
        replace(CONFIG, **change).shape(8)


def test_the_smallest_sizes_are_allowed():
    small = Latent(heads=1, kv_rank=1, nope_dim=1, rope_dim=0, value_dim=1, norm=RMSNorm())
    assert small.shape(4) == Shape(4, 1, 1, 1, 1, 0)
    assert run(attention(small, 4), vectors(1, 3, 4)).shape == (1, 3, 4)


def test_biases_are_where_deepseek_has_them():
    """On the way down and out, if at all; never on the way up."""
    plain, biased = DIRECT.build(8, build_context()), CONFIG.build(8, build_context())
    assert not [name for name, _ in plain.named_parameters() if "bias" in name]
    named = [name for name, _ in biased.named_parameters() if "bias" in name]
    assert named == ["q_down.bias", "kv_down.bias", "out.bias"]


def test_fresh_weights():
    torch.manual_seed(0)
    fresh = Latent(4, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=16, norm=RMSNorm()).build(32, build_context())
    for weight in (fresh.k_up, fresh.v_up, fresh.q_up.weight):
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_it_is_self_attention_only():
    with pytest.raises(Refused, match="use GroupedQuery for cross-attention"):
        CONFIG.build_cross(8, build_context())
    GroupedQuery(2).build_cross(8, build_context())


def test_it_works_without_a_rotary_share():
    from dataclasses import replace

    module, x = attention(replace(CONFIG, rope_dim=0), 8, Everything()), vectors(1, 4, 8)
    with torch.no_grad():
        torch.testing.assert_close(run(forced(module, True), x), run(forced(module, False), x))


@pytest.mark.parametrize("absorbed", [True, False])
@pytest.mark.parametrize("q_rank", [None, 3])
def test_gradcheck(absorbed, q_rank):
    config = Latent(2, kv_rank=3, nope_dim=2, rope_dim=2, value_dim=3, norm=RMSNorm(), q_rank=q_rank, bias=True)
    module = attention(config, 4, parts=Parts(qk=(QKNorm(RMSNorm()), Rope())))

    def call(m, x):
        return run(forced(m, absorbed), x, pos=Positions.of(torch.tensor([[0, 1, 2], [EMPTY, 0, 1]])))

    check_gradients(module, call, vectors(2, 3, 4))


def test_gradcheck_with_sinks():
    config = Latent(2, 3, 2, 2, 3, norm=RMSNorm(), scores=Scores(sinks=True))
    check_gradients(attention(config, 4), run, vectors(1, 3, 4))
