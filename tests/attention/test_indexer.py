"""The top-k indexer: its worked numbers, transformers' own, ties, layers that follow, caches, costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.deepseek_v32.configuration_deepseek_v32 import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer, DeepseekV32RotaryEmbedding

import vantage as vt
from tests.attention.helpers import F64, ShapeRecord, vectors
from tests.attention.model_checks import check_costs, check_saved
from vantage.attention import indexer as indexer_module
from vantage.attention.indexer import KeyChoice, best, best_keys, index_scores
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.spec import query_blocks
from vantage.spec.indexing import IndexerInputs
from vantage.spec.masks import Causal, Everything, SameSegment
from vantage.spec.parts import Shape, View
from vantage.spec.positions import Positions

CAUSAL = Causal() & SameSegment()


def indexer(keep: int, scores: list[list[float]], weights: list[float]) -> tuple[KeyChoice, IndexerInputs]:
    """One query; ``scores`` are those of each head and key, which the keys hold as they are."""
    heads, keys = len(scores), len(scores[0])
    part = KeyChoice(vt.TopKIndexer(keep, heads, heads), heads).double()
    stream = torch.tensor(scores, dtype=F64).T[None, None]
    pair = Positions.arange(1, 1, start=keys - 1).against(Positions.arange(1, keys))
    x = torch.ones(1, 1, heads, dtype=F64)
    with torch.no_grad():
        part.q.weight.zero_()
        part.weights.weight.zero_()
        for head in range(heads):  # the query of a head is the unit vector of that head, times √d
            part.q.weight[head * heads + head, 0] = heads**0.5
            part.weights.weight[head, 0] = weights[head] * heads**0.5
    return part, IndexerInputs(x, None, (stream,), pair, Everything())


def test_the_worked_number_needs_the_relu():
    """Key A scores (2, -2), key B (½, ½): 2 against 1. Without the ReLU A would have 0."""
    part, inputs = indexer(1, [[2.0, 0.5], [-2.0, 0.5]], [1.0, 1.0])
    q, weights = part.queries(inputs)
    scores = index_scores(q, inputs.streams[0][:, 0], weights)
    torch.testing.assert_close(scores.flatten(), torch.tensor([2.0, 1.0]).double())
    assert part.choose(inputs).flatten().tolist() == [0]


def test_scores_are_scaled_by_the_number_of_heads_and_by_their_width():
    """Nine heads with q · k = 4 in a width of 4, each with the weight 3: 9 · 3/√9 · 4/√4 = 18."""
    one = torch.ones(1, 9, 1, 4, dtype=F64)
    got = index_scores(one, one[:, 0], torch.full((1, 1, 9), 3.0, dtype=F64))
    assert got.tolist() == [[[18.0]]]


def test_its_own_transforms_are_built_for_its_own_heads():
    told = ShapeRecord()
    KeyChoice(vt.TopKIndexer(4, 3, 8, (told,)), 32)
    assert told.shapes == [Shape(32, 3, 1, 8, 8, rotary_dim=8)]


def test_the_chosen_keys_share_the_weights():
    """Scores 0, 5, 0, 0 with keys 0 and 2 chosen: ½, 0, ½, 0, where full attention gives key 1 0.980."""
    scores = torch.tensor([0.0, 5.0, 0.0, 0.0])
    assert float(scores.softmax(0)[1]) == pytest.approx(0.980, abs=5e-4)
    spec = vt.decoder(vocab=5, width=4, layers=1, heads=1, position="none")
    model = vt.build(with_indexer(spec, vt.TopKIndexer(2, 1, 2)), kernel="reference").double()
    attention = model.blocks[0].sublayers[0]
    attention.scorer.indexer.choose = lambda inputs: torch.tensor([0, 2]).expand(1, 4, 2)
    pos, keys, q = Positions.arange(1, 4), scores.double().view(1, 1, 4, 1), torch.ones(1, 1, 4, 1, dtype=F64)
    view = View(keys, keys, pos, (torch.zeros(1, 1, 4, 2, dtype=F64),))
    need = replace(attention.scorer.need(q, q, view, pos, torch.zeros(1, 4, 4)), scale=1.0, weights=True)
    weights = model._choose(need, q, view)(q, view, pos.against(pos), need).weights
    torch.testing.assert_close(weights[0, 0, 3], torch.tensor([0.5, 0, 0.5, 0]).double())


def with_indexer(spec: vt.ModelSpec, *indexers) -> vt.ModelSpec:
    layers = [replace(layer, indexer=indexers[min(i, len(indexers) - 1)]) for i, layer in enumerate(spec.layers)]
    return replace(spec, layers=tuple(layers))


def test_of_equal_keys_the_later_is_taken_wherever_it_lies():
    scores = torch.tensor([[[0.0, 3.0, 0.0, 0.0, -1.0]]])
    keys = Positions.of(torch.tensor([[4, 1, 0, 2, 3]]))
    assert best(scores, keys, 2).tolist() == [[[1, 0]]]
    assert best(scores, keys, 3).tolist() == [[[1, 0, 3]]]


def test_some_queries_at_a_time_choose_what_all_choose(monkeypatch):
    rows, queries, keys, heads = 2, 30, 50, 3
    q, k, weights = vectors(rows, heads, queries, 4), vectors(rows, keys, 4, seed=1), vectors(rows, queries, heads)
    pair = Positions.arange(rows, queries, start=keys - queries).against(Positions.arange(rows, keys))
    whole = best_keys(q, k, weights, pair, CAUSAL, 5)
    sizes: list[tuple[int, ...]] = []
    score = indexer_module.index_scores
    monkeypatch.setattr(indexer_module, "index_scores", lambda q, *of: sizes.append(q.shape) or score(q, *of))
    monkeypatch.setitem(query_blocks.CELLS, "cpu", 10 * indexer_module.SCORE_SIZED_TENSORS * rows * keys)
    assert torch.equal(best_keys(q, k, weights, pair, CAUSAL, 5), whole)
    assert [size[2] for size in sizes] == [10, 10, 10], "ten queries form as many numbers as are allowed"


def test_without_queries_nothing_is_chosen():
    pair = Positions.arange(2, 0).against(Positions.arange(2, 6))
    none = best_keys(vectors(2, 3, 0, 4), vectors(2, 6, 4), vectors(2, 0, 3), pair, CAUSAL, 5)
    assert none.shape == (2, 0, 5)
    assert none.dtype == torch.long


@torch.no_grad()
def test_transformers_indexer():
    T, K = 24, 6
    config = DeepseekV32Config(
        hidden_size=32, q_lora_rank=20, index_n_heads=16, index_head_dim=16, index_topk=K, qk_rope_head_dim=8
    )
    theirs, turn = DeepseekV32Indexer(config, 0).double(), DeepseekV32RotaryEmbedding(config)
    own = vt.TopKIndexer(K, 16, 16, (vt.Rope(share=0.5),), rank=20)
    ours = own.build(Shape(32, 4, 4, 18, 6, 8)).double()
    for p in theirs.parameters():
        p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    for mine, his in (("q", "wq_b"), ("k", "wk"), ("weights", "weights_proj")):
        getattr(ours, mine).weight.copy_(getattr(theirs, his).weight)
    ours.k_norm.load_state_dict(theirs.k_norm.state_dict())
    x, low, pos = vectors(2, T, 32), vectors(2, T, 20, seed=1), Positions.arange(2, T)
    later = torch.full((T, T), -torch.inf, dtype=F64).triu(1)
    wanted = theirs(x, low, turn(x, pos.pos), later.expand(2, T, T), pos.pos)
    chosen = ours.choose(IndexerInputs(x, low, ours.keep(x, pos), pos.against(pos), CAUSAL))
    for row in range(2):
        for t in range(K, T):  # before that all that is seen is chosen
            assert set(chosen[row, t].tolist()) == set(wanted[row, t].tolist())


def model(name: str) -> vt.Model:
    """Grouped and latent, each layer with an indexer of its own, and following the first."""
    turned = (vt.Rope(share=0.5),)
    grouped = vt.decoder(vocab=19, width=32, layers=3, heads=4, kv_heads=2)
    latent = vt.Latent(4, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=vt.RMSNorm(), q_rank=16)
    low = vt.decoder(vocab=19, width=32, layers=3, attention=latent)
    own, small = vt.TopKIndexer(4, 3, 8, turned), vt.TopKIndexer(4, 3, 8, turned, rank=16)
    specs = {
        "grouped": with_indexer(grouped, own),
        "latent": with_indexer(low, small),
        "shared": with_indexer(low, small, vt.SharedIndexer(0)),
        "fox": with_indexer(vt.decoder(vocab=19, width=32, layers=2, heads=4, position="fox"), own),
    }
    return sharpen(vt.build(specs[name]).double())


@pytest.mark.parametrize("name", ["grouped", "latent", "shared", "fox"])
@pytest.mark.parametrize("kind", ["contiguous", "paged", "quantised"])
@torch.no_grad()
def test_steps_rollback_padding_and_documents(name, kind):
    m, tokens = model(name), torch.randint(19, (2, 14), generator=torch.Generator().manual_seed(0))
    exact = kind != "quantised"
    whole, cache = m(tokens), m.new_cache(2, kind=kind)
    parts = [m(part, cache=cache) for part in tokens[:, :9].split((5, 1, 3), 1)]
    m(tokens[:, :2], cache=cache)
    cache.crop(9)
    parts.append(m(tokens[:, 9:], cache=cache))
    if exact:
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
    assert cache.layers[0].view().streams[0].dtype == F64  # the indexer's keys are not rounded
    padded = m(torch.nn.functional.pad(tokens, (3, 0)), positions=Positions.rows([14, 14], width=17, pad="left"))
    torch.testing.assert_close(padded[:, 3:], whole, rtol=1e-9, atol=1e-9)
    packed = m(tokens[:1], positions=Positions.packed([[5, 9]]))
    torch.testing.assert_close(packed[:, 5:], m(tokens[:1, 5:]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_choice_shows_only_beyond_the_keys_it_keeps():
    m, tokens = model("latent"), torch.randint(19, (1, 12), generator=torch.Generator().manual_seed(2))
    full = vt.build(with_indexer(m.spec, None)).double()
    missing, extra = full.load_state_dict(m.state_dict(), strict=False)
    assert missing == []
    assert all("indexer" in name for name in extra)
    one, other = m(tokens), full.eval()(tokens)
    torch.testing.assert_close(one[:, :4], other[:, :4])
    assert float((one[:, 4:] - other[:, 4:]).abs().amax(-1).min()) > 1e-6


def test_gradients_pass_the_choice_by():
    m = model("latent").train()
    m(torch.arange(12)[None]).square().sum().backward()
    for name, p in m.named_parameters():
        assert (p.grad is None) == (".indexer." in name), name


@pytest.mark.parametrize("name", ["grouped", "latent", "shared"])
def test_costs_are_those_that_torch_counts(name):
    check_costs(model(name).spec)


@pytest.mark.parametrize("keep", [16, 17])
def test_costs_where_there_are_just_so_many_keys(keep):
    """Of 17 keys 17 are kept without a look at them; to keep 16 they are scored."""
    spec = vt.decoder(vocab=19, width=32, layers=1, heads=4)
    check_costs(with_indexer(spec, vt.TopKIndexer(keep, 3, 24)))


def test_saved_and_loaded(tmp_path):
    again = check_saved(model("shared"), tmp_path)
    assert "indexer SharedIndexer(layer=0)" in again.summary()


def test_what_cannot_be():
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4)
    with pytest.raises(BadInput, match="keep=0"):
        vt.TopKIndexer(0)
    with pytest.raises(BadInput, match="an indexer of rank 16 in a layer whose queries are made from x"):
        vt.build(with_indexer(spec, vt.TopKIndexer(2, 1, 8, rank=16)))
    with pytest.raises(BadInput, match="give an earlier layer"):
        with_indexer(spec, vt.SharedIndexer(0))
    with pytest.raises(BadInput, match="which has none of its own"):
        with_indexer(spec, None, vt.SharedIndexer(0))
    windowed = replace(spec.layers[1], mask=CAUSAL & vt.Window(3), indexer=vt.SharedIndexer(0))
    with pytest.raises(BadInput, match="sees other keys"):
        replace(spec, layers=(replace(spec.layers[0], indexer=vt.TopKIndexer(2, 1, 8)), windowed))
    with pytest.raises(BadInput, match="its indexer cannot either"):
        replace(spec, layers=(spec.layers[0], replace(spec.layers[1], source=0, indexer=vt.TopKIndexer(2, 1, 8))))
    delta = replace(spec.layers[0], attention=vt.GatedDelta(4, vt.RMSNorm()), qk=(), indexer=vt.TopKIndexer(2, 1, 8))
    with pytest.raises(Refused, match="GatedDelta cannot have an indexer"):
        vt.build(replace(spec, layers=(delta,)))
    with pytest.raises(Refused, match="looks at every key before a query"):
        vt.build(with_indexer(spec, vt.TopKIndexer(2, 1, 8))).new_cache(kind="tova")
