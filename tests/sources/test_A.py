"""A2 to A12: the documents' numbers about attention, from the real parts."""

import itertools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.attention.helpers import F64, attention, run, set_qkv, vectors
from vantage.attention import Dot, GroupedQuery, RecurrentAttention
from vantage.kernels import kernel_named
from vantage.model import build, decoder
from vantage.spec.masks import Causal, Everything, dense
from vantage.spec.model import Scores
from vantage.spec.normalisers import Argmax, Softmax
from vantage.spec.parts import Dense, EncoderOutput, Need, View
from vantage.spec.positions import Positions

REFERENCE = kernel_named("reference")
EVERY_KERNEL = pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])


def attend(scores, *, values=None, mask=None, bias=None, kernel="reference", **need):
    """Weights times values for given scores (T, S): queries are the rows, keys the unit vectors."""
    scores = torch.as_tensor(scores, dtype=F64)
    T, S = scores.shape
    values = torch.eye(S, dtype=F64) if values is None else values
    view = View(torch.eye(S, dtype=F64)[None, None], values[None, None], Positions.arange(1, S))
    pos = Positions.arange(1, T)
    bias = None if bias is None else Dense(bias[None, None])
    asked = Need(Everything() if mask is None else mask, scale=need.pop("scale", 1.0), bias=bias, **need)
    return kernel_named(kernel)(scores[None, None], view, pos.against(view.pos), asked).out[0, 0]


# ---- A2, A3: in an RNN encoder-decoder

H = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], dtype=F64)
STATE = torch.tensor([[0.5, 0.2]], dtype=F64)


def test_A2_worked_context_vector():
    scores = Dot()(STATE, H)[0]
    assert scores.tolist() == pytest.approx([0.5, 0.2, 0.7])
    assert scores.exp().tolist() == pytest.approx([1.6487, 1.2214, 2.0138], abs=5e-5)
    assert float(scores.exp().sum()) == pytest.approx(4.8839, abs=1e-4)
    context, weights = RecurrentAttention(Dot())(STATE, H)
    assert weights[0].tolist() == pytest.approx([0.33758, 0.25009, 0.41233], abs=5e-6)
    assert context[0].tolist() == pytest.approx([0.74991, 0.66242], abs=5e-6)


def test_A2_erratum_two_weights_of_the_document_are_slips():
    context, weights = RecurrentAttention(Dot())(STATE, H)
    printed = torch.tensor([0.3374, 0.2501, 0.4125], dtype=F64)
    off = (weights[0] - printed).abs()
    assert off[1] < 5e-5  # this one is rounded as it should be
    assert off[0] > 5e-5
    assert off[2] > 5e-5
    assert abs(float(context[0, 1]) - 0.6626) > 5e-5
    assert abs(float(context[0, 0]) - 0.7499) < 5e-5


def test_A3_alignment_of_a_translation():
    """States that match the source words as well as the document's rows say give the document's rows."""
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.05, 0.15, 0.8]], dtype=F64)  # Je, suis, en
    source = torch.eye(3, dtype=F64).expand(3, 3, 3)  # I, am, learning
    context, weights = RecurrentAttention(Dot())(rows.log(), source)
    torch.testing.assert_close(weights, rows)
    torch.testing.assert_close(context, rows)
    assert weights.argmax(-1).tolist() == [0, 1, 2]


# ---- A4 to A8: the module


def half_and_half(d, scores=Scores(), value_dim=None):
    """A head whose query is the first half of x, whose key is the second, and whose value is x's front."""
    value_dim = d if value_dim is None else value_dim
    module = attention(GroupedQuery(1, head_dim=d, value_dim=value_dim, scores=scores), 2 * d, Everything())
    eye = torch.eye(2 * d, dtype=F64)
    set_qkv(module, eye[:, :d], eye[:, d:], eye[:, :value_dim])
    return module


def weights_of(module, x, **options):
    seen = []
    with torch.no_grad():
        run(module, x, watch=lambda site, i, view, need, done: seen.append(done.weights), **options)
    return seen[0]


@EVERY_KERNEL
def test_A4_scaled_dot_product_attention_by_hand(kernel):
    """Two tokens, d_k = 4, d_v = 3: scores over 2, a softmax over each row, a weighted sum."""
    module = half_and_half(4, value_dim=3)
    x = torch.tensor([[[2.0, 0, 0, 0, 1, 0, 0, 0], [0, 4.0, 0, 0, 0, 1, 0, 0]]], dtype=F64)
    with torch.no_grad():
        out = run(module, x, kernel=kernel)[0]
    e1, e2 = math.e / (math.e + 1), math.exp(2) / (math.exp(2) + 1)  # scores (2, 0) and (0, 4), halved
    assert out[:, :3].tolist() == [pytest.approx([2 * e1, 4 * (1 - e1), 0]), pytest.approx([2 * (1 - e2), 4 * e2, 0])]
    assert (out[:, 3:] == 0).all()  # values are three wide


def test_A4_scores_have_variance_1_whatever_the_width():
    """Unit-variance q and k give scores of variance d_k; scaled, 1. Read off the weights: log(w_0 / w_1) has twice."""
    for d in (4, 64, 256):
        x = vectors(2000, 2, 2 * d, seed=d)
        for scores, variance in ((Scores(), 1.0), (Scores(scale=1.0), float(d))):
            w = weights_of(half_and_half(d, scores), x)[:, 0, 0].log()
            assert float((w[:, 0] - w[:, 1]).var()) == pytest.approx(2 * variance, rel=0.15)


def test_A4_the_softmax_stays_diffuse():
    def entropy(d, scores=Scores()):
        w = weights_of(half_and_half(d, scores), vectors(50, 16, 2 * d, seed=d))
        return float(-(w * w.clamp_min(1e-300).log()).sum(-1).mean())

    scaled = [entropy(d) for d in (4, 64, 256)]
    plain = [entropy(d, Scores(scale=1.0)) for d in (4, 64, 256)]
    assert max(scaled) - min(scaled) < 0.1
    assert min(scaled) > 0.8 * math.log(16)
    assert plain[0] > plain[1] + 0.5 > plain[2] + 0.5
    assert plain[2] < 0.3


def test_A4_erratum_it_multiplies_by_one_over_the_root_and_does_not_divide_by_it():
    module = half_and_half(64)
    assert module.scorer.scale == 1 / 8
    x = vectors(1, 3, 128)
    q, k, _ = module.project(x)
    torch.testing.assert_close(weights_of(module, x), (q @ k.mT / 8).softmax(-1))
    assert not torch.allclose(weights_of(module, x), (q @ k.mT / (1 / 8)).softmax(-1))


def test_A5_the_mask_is_0_up_to_the_diagonal_and_minus_infinity_above():
    pos = Positions.arange(1, 4)
    seen = dense(Causal(), pos.against(pos))[0, 0]
    M = torch.zeros(4, 4).masked_fill(~seen, -torch.inf)
    assert M.tolist() == [[0.0 if j <= i else -math.inf for j in range(4)] for i in range(4)]
    w = weights_of(attention(GroupedQuery(2), 8), vectors(1, 4, 8))
    assert (w[:, :, ~seen] == 0).all()
    assert (w[:, :, seen] > 0).all()
    torch.testing.assert_close(w.sum(-1), torch.ones(1, 2, 4, dtype=F64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_A5_the_mask_inside_or_outside_the_division_is_bit_equal(dtype):
    """softmax((QKᵀ + M) / √d) and softmax(QKᵀ / √d + M), for M of 0 and −∞, and the mask itself."""
    T, d = 6, 8
    q, k, v = (vectors(1, 2, T, d, seed=s).to(dtype) for s in (0, 1, 2))
    pos = Positions.arange(1, T)
    M = torch.zeros(T, T, dtype=dtype).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)

    def run_with(mask, bias):
        need = Need(mask, scale=d**-0.5, bias=bias, weights=True)
        return REFERENCE(q, View(k, v, pos), pos.against(pos), need)

    outside = run_with(Everything(), Dense(M[None, None]))
    inside = run_with(Everything(), Dense((M / d**0.5)[None, None]))
    masked = run_with(Causal(), None)
    for other in (inside, masked):
        assert torch.equal(outside.out, other.out)
        assert torch.equal(outside.weights, other.weights)


def test_A5_erratum_the_product_is_QKt_and_masked_attention_is_not_cross_attention():
    module, x, seen = attention(GroupedQuery(1), 4), vectors(1, 6, 4), []
    run(module, x, watch=lambda site, i, view, need, done: seen.append((site, done.weights.shape)))
    assert seen == [("self", (1, 1, 6, 6))]  # tokens by tokens; QᵀK would be 4 by 4


@pytest.mark.parametrize("masked", [True, False])
@EVERY_KERNEL
def test_A6_heads_are_attended_one_by_one_put_side_by_side_and_projected(masked, kernel):
    """h heads of width d / h: each alone, as a module of one head, then W^O."""
    heads, width = 4, 8
    d = width // heads
    mask = Causal() if masked else Everything()
    module, x = attention(GroupedQuery(heads), width, mask), vectors(2, 5, width)
    q, k, v = (w.T for w in module.qkv.weight.detach().chunk(3))
    alone = []
    for h in range(heads):
        cut = slice(h * d, (h + 1) * d)
        one = attention(GroupedQuery(1, head_dim=d), width, mask)
        set_qkv(one, q[:, cut], k[:, cut], v[:, cut])
        with torch.no_grad():
            alone.append(run(one, x, kernel="reference")[..., :d])
    with torch.no_grad():
        wanted = torch.cat(alone, -1) @ module.out.weight.T
        torch.testing.assert_close(run(module, x, kernel=kernel), wanted)


@pytest.mark.parametrize("kv_heads", [8, 4, 2, 1])
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_A7_the_cache_shrinks_with_the_key_value_heads(kv_heads, kind):
    def allocated(kv_heads):
        model = build(decoder(vocab=5, width=32, layers=2, heads=8, kv_heads=kv_heads))
        cache = model.new_cache(2, kind=kind, capacity=48)
        with torch.no_grad():
            model(torch.zeros(2, 48, dtype=torch.long), cache=cache)
        held = sum(t.nbytes for layer in cache.layers for t in layer.store.tensors)
        assert cache.bytes == held
        return held

    assert allocated(8) == allocated(kv_heads) * 8 // kv_heads


def test_A7_multi_query_saves_2Mdd_times_h_minus_1():
    """Counted multiply-accumulates of the real module, every head d×d."""
    M, d, h = 10, 8, 4

    def count(kv_heads):
        module = attention(GroupedQuery(h, kv_heads, head_dim=d), d)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run(module, vectors(1, M, d))
        return counter.get_total_flops() // 2  # a multiply-accumulate is two operations

    assert count(h) - count(1) == 2 * M * d**2 * (h - 1)
    assert count(h) - count(2) == 2 * M * d**2 * (h - 2)


def test_A7_heads_that_share_are_heads_with_equal_weights():
    shared = attention(GroupedQuery(4, 1), 8)
    every = attention(GroupedQuery(4, 4), 8)
    q, k, v = shared.qkv.weight.detach().split((8, 2, 2))
    set_qkv(every, q.T, k.repeat(4, 1).T, v.repeat(4, 1).T, shared.out.weight.detach().T)
    x = vectors(1, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(run(shared, x), run(every, x))


@EVERY_KERNEL
def test_A8_queries_from_one_sequence_keys_and_values_from_another(kernel):
    """Two queries over three source tokens; the source's values are copied where the keys match."""
    module = attention(GroupedQuery(1, head_dim=3, value_dim=3), 3, cross=True)
    eye = torch.eye(3, dtype=F64)
    with torch.no_grad():
        module.q.weight.copy_(60 * eye)
        module.kv.weight.copy_(torch.cat([eye, 5 * eye]))
        module.out.weight.copy_(eye)
        source = eye[None]
        targets = eye[None, [2, 0]]
        out = run(module, targets, memory=EncoderOutput(source, Positions.arange(1, 3)), kernel=kernel)
    torch.testing.assert_close(out, 5 * targets)


def test_A8_the_order_of_the_source_does_not_matter_and_its_length_is_its_own():
    module = attention(GroupedQuery(4, 2), 8, cross=True)
    x, source = vectors(1, 3, 8), vectors(1, 7, 8, seed=1)
    index = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    seen = []
    with torch.no_grad():
        one = run(
            module,
            x,
            memory=EncoderOutput(source, Positions.arange(1, 7)),
            watch=lambda site, i, view, need, done: seen.append((site, done.weights.shape)),
        )
        other = run(module, x, memory=EncoderOutput(source[:, index], Positions.arange(1, 7)))
    torch.testing.assert_close(one, other)
    assert seen == [("cross", (1, 4, 3, 7))]


# ---- A9 to A12: what the softmax makes of scores

CYCLE = torch.full((4, 4), -torch.inf, dtype=F64)
CYCLE[range(4), [1, 2, 3, 0]] = 5.0


@EVERY_KERNEL
def test_A9_four_heat_maps(kernel):
    uniform = attend(torch.full((4, 4), 2.0), kernel=kernel)
    torch.testing.assert_close(uniform, torch.full((4, 4), 0.25, dtype=F64))
    diagonal = attend(9 * torch.eye(4) + 1, kernel=kernel)
    assert diagonal.diagonal().tolist() == pytest.approx([0.99963] * 4, abs=5e-6)
    assert diagonal[~torch.eye(4).bool()].tolist() == pytest.approx([0.00012] * 12, abs=5e-6)
    lower = attend(torch.full((4, 4), 5.0), mask=Causal(), kernel=kernel)
    torch.testing.assert_close(lower, torch.ones(4, 4, dtype=F64).tril() / torch.arange(1.0, 5.0)[:, None])
    shift = attend(torch.zeros(4, 4), bias=CYCLE, kernel=kernel)
    assert shift.tolist() == (CYCLE == 5).double().tolist()


def test_A9_erratum_the_diagonal_is_not_0_9997():
    value = float(attend(9 * torch.eye(4) + 1)[0, 0])
    assert f"{value:.4f}" == "0.9996"
    assert abs(value - 0.9997) > 5e-5


SCORES = torch.tensor([[0.3, 1.2, -0.5, 1.1]])


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
@EVERY_KERNEL
def test_A10_temperature_divides_the_scores(temperature, kernel):
    wanted = (SCORES.double() / temperature).softmax(-1)
    torch.testing.assert_close(attend(SCORES, normalise=Softmax(temperature), kernel=kernel), wanted)


@EVERY_KERNEL
def test_A10_the_limits_are_argmax_and_uniform(kernel):
    cold = attend(SCORES, normalise=Softmax(1e-3), kernel=kernel)
    assert torch.equal(attend(SCORES, normalise=Argmax()), torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=F64))
    torch.testing.assert_close(cold, attend(SCORES, normalise=Argmax()))
    hot = attend(SCORES, normalise=Softmax(1e6), kernel=kernel)
    torch.testing.assert_close(hot, torch.full((1, 4), 0.25, dtype=F64), rtol=0, atol=1e-6)


def test_A10_temperature_in_the_module():
    x = vectors(1, 5, 8)
    warm = attention(GroupedQuery(2, scores=Scores(normalise=Softmax(2.0))), 8)
    scaled = attention(GroupedQuery(2, scores=Scores(scale=0.5 / 2)), 8)  # 1 / √4, over 2
    with torch.no_grad():
        torch.testing.assert_close(run(warm, x), run(scaled, x))


@EVERY_KERNEL
def test_A11_a_dominating_key_copies_its_value(kernel):
    values = vectors(6, 3, seed=4)
    for j in range(6):
        out = attend(30.0 * torch.eye(6)[j : j + 1], values=values, kernel=kernel)
        torch.testing.assert_close(out[0], values[j], rtol=0, atol=1e-11)
    vague = attend(1.0 * torch.eye(6)[:1], values=values, kernel=kernel)
    assert (vague[0] - values[0]).abs().max() > 0.1


def two_of(n, g, kernel="reference"):
    """The weights of q = g (k_a + k_b) over n orthonormal keys, which are not the unit vectors."""
    keys = torch.linalg.qr(vectors(n, n, seed=n)).Q
    query = g * (keys[0] + keys[1])
    pos = Positions.arange(1, 1, n)
    view = View(keys[None, None], torch.eye(n, dtype=F64)[None, None], Positions.arange(1, n))
    return kernel_named(kernel)(query[None, None, None], view, pos.against(view.pos), Need(Causal(), 1.0)).out[0, 0, 0]


@EVERY_KERNEL
def test_A12_averaging_two_values(kernel):
    for n, g in itertools.product((2, 10, 100), (0.0, 1.0, 5.0, 20.0)):
        out = two_of(n, g, kernel)
        share = math.exp(g) / (2 * math.exp(g) + n - 2)
        assert out[:2].tolist() == pytest.approx([share, share], rel=1e-9)
        assert out[2:].tolist() == pytest.approx([share / math.exp(g)] * (n - 2), rel=1e-9)
    assert two_of(100, 20.0, kernel)[:2].tolist() == pytest.approx([0.5, 0.5], abs=1e-6)


def test_A12_erratum_a_gain_of_1_does_not_average():
    """S4 calls e / (2e + n − 2) about a half; for n = 100 it is 0.026."""
    assert float(two_of(100, 1.0)[0]) == pytest.approx(0.026, abs=5e-4)
    assert float(two_of(100, 1.0)[0]) == pytest.approx(math.e / (2 * math.e + 98))
    assert float(two_of(2, 1.0)[0]) == pytest.approx(0.5)
    shares = [float(two_of(100, g)[0]) for g in (1.0, 3.0, 5.0, 8.0, 12.0)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.499


def test_A12_through_the_module():
    """The same head, as a module: keys are the tokens, the last token asks for the first two."""
    n, g = 5, 12.0
    eye = torch.eye(n + 1, dtype=F64)
    module = attention(GroupedQuery(1, scores=Scores(scale=1.0)), n + 1)
    ask = torch.zeros(n + 1, n + 1, dtype=F64)
    ask[n, :2] = g
    set_qkv(module, ask, eye, eye)
    with torch.no_grad():
        out = run(module, eye[None])[0, n]
    assert out[:2].tolist() == pytest.approx([0.5, 0.5], abs=1e-4)
