"""K1 to K5: the documents' numbers about cached generation, counted in real models."""

import pytest
import torch

from tests.attention.helpers import F64, attention, context, run, set_qkv, sharpen
from vantage.attention import GroupedQuery, Latent
from vantage.cache import LayerPlan, make_cache
from vantage.kernels import kernel_named
from vantage.model import build, decoder
from vantage.model.norms import RMSNorm
from vantage.spec.masks import Causal
from vantage.spec.positions import Positions

N = 7
CACHES = pytest.mark.parametrize("kind", ["contiguous", "paged", "quantised"])


def model_of(**options):
    return sharpen(
        build(decoder(**{"vocab": 11, "width": 16, "layers": 2, "heads": 4, "kv_heads": 2, **options})).double()
    )


def projections(model):
    """Counts, per layer, how often the key of each position was projected."""
    counts = [{} for _ in model.blocks]

    def hook(index):
        def count(module, args):
            x, ctx = args
            for p in ctx.pos.pos[0].tolist():
                counts[index][p] = counts[index].get(p, 0) + x.shape[0]

        return count

    for index, block in enumerate(model.blocks):
        block.steps[0].sublayer.register_forward_pre_hook(hook(index))
    return counts


@torch.no_grad()
def generate(model, steps, cache=None, first=3):
    """Greedy, from one token: with a cache each step reads the new token alone."""
    told = torch.tensor([[first]])
    for _ in range(steps):
        read = told if cache is None else told[:, -1:]
        told = torch.cat([told, model(read, cache=cache)[:, -1:].argmax(-1)], 1)
    return told[0].tolist()


def test_K1_without_a_cache_keys_are_projected_over_and_over():
    model = model_of()
    counts = projections(model)
    generate(model, N)
    for layer in counts:
        assert sum(layer.values()) == N * (N + 1) // 2
        assert layer[0] == N  # the first input's key
        assert layer[1] == N - 1  # y₁'s: it is not needed to generate y₁
        assert layer == {t: N - t for t in range(N)}  # and the last output's never


@CACHES
def test_K1_with_a_cache_every_key_is_projected_once(kind):
    model = model_of()
    counts = projections(model)
    generate(model, N, model.new_cache(kind=kind))
    for layer in counts:
        assert layer == dict.fromkeys(range(N), 1)
        assert sum(layer.values()) == N


def test_K1_the_projections_counted_are_those_of_the_weights():
    """The map to queries, keys and values is called for as many tokens as were counted."""
    model, rows = model_of(), []
    for block in model.blocks:
        block.steps[0].sublayer.qkv.register_forward_hook(lambda module, args, out: rows.append(args[0].shape[1]))
    generate(model, N, model.new_cache())
    assert rows == [1] * (2 * N)
    rows.clear()
    generate(model, N)
    assert sum(rows) == 2 * N * (N + 1) // 2


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@torch.no_grad()
def test_K2_step_by_step(kind):
    """Project the new token, append, attend, take the likeliest, repeat: the same tokens as without."""
    model = model_of()
    cache = model.new_cache(kind=kind)
    tokens = torch.tensor([generate(model, N)])
    whole = []
    hidden = model.hidden(tokens[:, :-1], watch=lambda site, i, view, need, done: whole.append(view))
    wanted = model.head(hidden)
    for t in range(N):
        step = model(tokens[:, t : t + 1], cache=cache)
        torch.testing.assert_close(step[:, 0], wanted[:, t])
        assert int(step.argmax(-1)) == int(tokens[0, t + 1])
        assert cache.tokens == (t + 1,)
        for layer, full in zip(cache.layers, whole, strict=True):  # K≤t and V≤t, as the whole pass has them
            view = layer.view()
            kept = view.pos.order[0] >= 0
            k, v = view.k[:, :, kept], view.v[:, :, kept]
            torch.testing.assert_close(k, full.k[:, :, : t + 1])
            torch.testing.assert_close(v, full.v[:, :, : t + 1])
            assert view.pos.pos[0, kept].tolist() == list(range(t + 1))


@CACHES
def test_K2_greedy_tokens_are_the_same(kind):
    model = model_of()
    assert generate(model, 12, model.new_cache(kind=kind)) == generate(model, 12)


# ---- K3

X = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]], dtype=F64)
KEYS = [[1.0, 4.0], [3.0, 10.0], [5.0, 16.0]]
VALUES = [[2.5, 0.5], [5.5, 0.5], [8.5, 0.5]]


def worked_example():
    """W^Q = I, W^K = [[1, 2], [0, 1]], W^V = [[.5, −.5], [1, .5]], for row vectors: k = x W^K."""
    module = attention(GroupedQuery(1), 2)
    k = torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=F64)
    v = torch.tensor([[0.5, -0.5], [1.0, 0.5]], dtype=F64)
    set_qkv(module, torch.eye(2, dtype=F64), k, v)
    return module


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@torch.no_grad()
def test_K3_worked_example(kind):
    module = worked_example()
    cache = make_cache([LayerPlan(1, 2, 2, Causal())], kind=kind, dtype=F64)
    for t in range(3):
        pos = Positions.arange(1, 1, t)
        with cache.step(pos):
            out = module(X[:, t : t + 1], context(pos, caches=cache.layers))
        view = cache.layers[0].view()
        kept = view.pos.order[0] >= 0
        assert view.k[0, 0, kept].tolist() == KEYS[: t + 1]
        assert view.v[0, 0, kept].tolist() == VALUES[: t + 1]
    assert out[0, 0].tolist() == pytest.approx([8.5, 0.5], abs=1e-6)


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
@torch.no_grad()
def test_K3_in_one_pass(kernel):
    out = run(worked_example(), X, kernel=kernel)[0]
    assert out[0].tolist() == pytest.approx([2.5, 0.5])
    assert out[2].tolist() == pytest.approx([8.5, 0.5], abs=1e-6)
    # the last query, (5, 6), scores 29, 75 and 121 over √2: all weight but e^(-46/√2) on the last value
    scores = torch.tensor([29.0, 75.0, 121.0], dtype=F64) / 2**0.5
    torch.testing.assert_close(out[2], scores.softmax(-1) @ torch.tensor(VALUES, dtype=F64))


def test_K1_erratum_the_last_input_is_x3():
    """To generate x₄ neither q₄ nor k₄ is needed: three keys, and the third query's output (8.5, 0.5)."""
    module, calls = worked_example(), []
    module.qkv.register_forward_hook(lambda m, args, out: calls.append(args[0].shape[1]))
    with torch.no_grad():
        out = run(module, X)
    assert calls == [3]
    assert out[0, -1].tolist() == pytest.approx([8.5, 0.5], abs=1e-6)


# ---- K4


class Counting:
    """The reference, counting scores: queries times keys, for every head."""

    name = "counting"

    def __init__(self):
        self.scores = 0

    def refuses(self, need, q, view):
        return None

    def __call__(self, q, view, pair, need):
        self.scores += q.shape[1] * q.shape[2] * view.k.shape[2]
        return kernel_named("reference")(q, view, pair, need)


def score_work(n, cached):
    model = model_of(layers=1, heads=1, kv_heads=1)
    model.kernel = counter = Counting()
    generate(model, n, model.new_cache() if cached else None)
    return counter.scores


@pytest.mark.parametrize("n", [4, 9])
def test_K4_score_work_falls_from_n_cubed_to_n_squared(n):
    assert score_work(n, cached=False) == n * (n + 1) * (2 * n + 1) // 6
    assert score_work(n, cached=True) == n * (n + 1) // 2


def test_K4_how_it_grows():
    ratio = {cached: score_work(16, cached) / score_work(8, cached) for cached in (False, True)}
    assert ratio[False] == pytest.approx(8, rel=0.1)
    assert ratio[True] == pytest.approx(4, rel=0.1)


def test_K4_erratum_n_squared_to_n_counts_projections_alone():
    for n in (4, 8):
        model = model_of(layers=1)
        plain, cached = projections(model), []
        generate(model, n)
        assert sum(plain[0].values()) == n * (n + 1) // 2
        other = model_of(layers=1)
        cached = projections(other)
        generate(other, n, other.new_cache())
        assert sum(cached[0].values()) == n


def test_K4_a_window_makes_a_step_cost_the_same_however_long_the_text():
    model = model_of(layers=1, heads=1, kv_heads=1, window=3)
    model.kernel = counter = Counting()
    cache, costs = model.new_cache(kind="ring"), []
    with torch.no_grad():
        for t in range(12):
            before = counter.scores
            model(torch.tensor([[t % 11]]), cache=cache)
            costs.append(counter.scores - before)
    assert costs == [1, 2] + [3] * 10


# ---- K5


def allocated(cache):
    held = sum(t.nbytes for layer in (*cache.layers, *cache.cross) for t in layer.store.tensors)
    assert cache.bytes == held
    return held


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_K5_bytes_are_keys_and_values_of_every_layer_head_and_token(dtype):
    layers, width, heads = 3, 32, 8
    for batch in (1, 4):
        for length in (10, 40):
            for kv_heads in (1, 2, 8):
                spec = decoder(vocab=5, width=width, layers=layers, heads=heads, kv_heads=kv_heads)
                cache = build(spec).to(dtype).new_cache(batch, capacity=length)
                assert allocated(cache) == 2 * layers * batch * kv_heads * length * (width // heads) * dtype.itemsize


def test_K5_memory_is_linear_in_length_and_batch():
    model = model_of()
    one = allocated(model.new_cache(1, capacity=10))
    assert allocated(model.new_cache(1, capacity=30)) == 3 * one
    assert allocated(model.new_cache(5, capacity=10)) == 5 * one
    assert allocated(model.new_cache(5, capacity=30)) == 15 * one


def test_K5_a_window_bounds_it():
    model = model_of(window=4)
    cache = model.new_cache(kind="ring")
    before = allocated(cache)
    with torch.no_grad():
        for _ in range(20):
            model(torch.tensor([[1]]), cache=cache)
    assert allocated(cache) == before < allocated(model_of().new_cache(capacity=20))


def test_K5_latent_attention_keeps_a_latent_and_a_rotary_key():
    attention = Latent(4, kv_rank=6, nope_dim=8, rope_dim=2, value_dim=8, norm=RMSNorm())
    cache = build(decoder(vocab=5, width=32, layers=3, attention=attention)).new_cache(2, capacity=10)
    assert allocated(cache) == 3 * 2 * 10 * (6 + 2) * 4


def test_K5_eight_bits_are_a_byte_a_number_and_a_scale_a_head():
    spec = decoder(vocab=5, width=32, layers=3, heads=4, kv_heads=2)
    cache = build(spec).new_cache(2, kind="quantised", capacity=10)
    assert allocated(cache) == 2 * 3 * 2 * 2 * 10 * (8 + 4)
