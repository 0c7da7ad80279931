"""NSA: worked by hand, written out query by query, who chooses, caches and padding, costs, capture, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import vantage as vt
from tests.attention.helpers import F64, attention, check_gradients, run, vectors
from tests.attention.model_checks import (
    TOKENS,
    check_cached,
    check_costs,
    check_generated,
    check_saved,
    check_taken_back,
    small_model,
)
from vantage.attention.native_sparse import GatedBranches
from vantage.errors import BadInput, Refused
from vantage.inspect.sites import observing, sites_of
from vantage.inspect.tiles import tiles
from vantage.model import empty_model
from vantage.parallel.tensor import divided
from vantage.spec.masks import Causal, SameSegment, dense, visible
from vantage.spec.native import CannotLower
from vantage.spec.positions import Positions
from vantage.spec.transforms import chain

BLOCKS = vt.BlockChooser(3, keep=4)
NSA = vt.NativeSparse(4, 2, near=4, blocks=BLOCKS)
CAUSAL = Causal() & SameSegment()


def branches(config: vt.NativeSparse, scores: Tensor, gates: Tensor, pos: Positions, kv_heads: int = 1) -> Tensor:
    """The weights over scores (H, T, S), under a causal mask."""
    pair = pos.against(pos)
    hidden = ~dense(visible(CAUSAL, pair), pair)
    masked = scores[None].expand(len(pos.pos), -1, -1, -1).masked_fill(hidden, float("-inf"))
    weights, lse = GatedBranches(config, kv_heads, gates)(masked, None, pair)
    assert torch.equal(lse, torch.zeros_like(masked[..., 0]))
    return weights


# ---- the rule


def test_worked_by_hand():
    """Five tokens with the values 1, 3, 5, 7, 9, all scores equal, in blocks of two.

    The last query sees the blocks 2 and 6 as one: 4. It chooses the first block and its own, 1, 3 and 9: 13/3. Near it
    are 7 and 9: 8. Half of each: 49/6. Queries 0 to 4 see 0, 1, 1, 2, 2 blocks as one.
    """
    config = vt.NativeSparse(1, near=2, blocks=vt.BlockChooser(2, keep=2, recent=1))
    values, zeros = torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0], dtype=F64), torch.zeros(1, 5, 5, dtype=F64)
    pos = Positions.arange(1, 5)
    each = [branches(config, zeros, gates.expand(1, 1, 5, 3), pos)[0, 0] for gates in torch.eye(3, dtype=F64)]
    assert [float(w[4] @ values) for w in each] == pytest.approx([4, 13 / 3, 8])
    half = branches(config, zeros, torch.full((1, 1, 5, 3), 0.5, dtype=F64), pos)[0, 0]
    assert float(half[4] @ values) == pytest.approx(49 / 6)
    assert [len(set(row[row > 0].tolist())) and int((row > 0).sum()) // 2 for row in each[0]] == [0, 1, 1, 2, 2]
    assert [float(row.sum()) for row in each[0]] == pytest.approx([0, 1, 1, 1, 1])


def test_one_token_is_its_own_block_and_near_itself():
    gates = torch.tensor([0.5, 0.25, 0.125], dtype=F64).expand(1, 1, 1, 3)
    assert float(branches(NSA, torch.zeros(1, 1, 1, dtype=F64), gates, Positions.arange(1, 1))) == 0.375
    single = replace(NSA, blocks=vt.BlockChooser(1, keep=3))
    assert float(branches(single, torch.zeros(1, 1, 1, dtype=F64), gates, Positions.arange(1, 1))) == 0.875


def written_out(config: vt.NativeSparse, q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> Tensor:
    """(H, T, e), query by query, as flash-linear-attention has it: pooled keys, and a choice for each key head."""
    H, T, d = q.shape
    G, size, blocks = len(k), config.blocks.size, config.blocks
    out = torch.zeros(H, T, v.shape[-1], dtype=q.dtype)
    for g in range(G):
        heads = range(g * H // G, (g + 1) * H // G)
        for t in range(T):
            whole, own = (t + 1) // size, t // size
            pooled_k, pooled_v = (x[g, : whole * size].unflatten(0, (whole, size)).mean(1) for x in (k, v))
            weights = {h: (pooled_k @ q[h, t] / d**0.5).softmax(0) for h in heads}
            always = {b for b in range(own + 1) if b < blocks.first or own - b < blocks.recent}
            total = sum(weights.values())
            others = sorted(set(range(whole)) - always, key=lambda b, total=total: -float(total[b]))
            chosen = always | set(others[: blocks.keep - blocks.first - blocks.recent])
            tokens = [j for j in range(t + 1) if j // size in chosen]
            near = list(range(max(0, t - config.near + 1), t + 1))
            for h in heads:
                of_chosen, of_near = (
                    (k[g, some] @ q[h, t] / d**0.5).softmax(0) @ v[g, some] for some in (tokens, near)
                )
                one, two, three = gates[h, t]
                out[h, t] = one * (weights[h] @ pooled_v) + two * of_chosen + three * of_near
    return out


def expected(module, x: Tensor, config: vt.NativeSparse) -> Tensor:
    """(T, D) of one row x (T, D)."""
    q, k, v = module.project(x[None])
    pos = Positions.arange(1, len(x))
    q, k = chain(module.qk, "query", q, pos), chain(module.qk, "key", k, pos)
    gates = module.scorer.normaliser.map(x).sigmoid().unflatten(-1, (config.heads, 3)).transpose(0, 1)
    return module.out(written_out(config, q[0], k[0], v[0], gates).transpose(0, 1).flatten(1))


CONFIGS = {
    "grouped": NSA,
    "one key head": replace(NSA, kv_heads=1, near=1),
    "multi-head": replace(NSA, kv_heads=None, near=30, blocks=vt.BlockChooser(2, keep=5, first=2, recent=1)),
    "nothing to choose": replace(NSA, blocks=vt.BlockChooser(4, keep=2, first=0)),
    "no first block": replace(NSA, blocks=vt.BlockChooser(2, keep=3, first=0, recent=1)),
    "single tokens": replace(NSA, blocks=vt.BlockChooser(1, keep=6, first=2, recent=3)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("position", [vt.NoPE(), vt.Rope()], ids=["none", "rope"])
def test_written_out_query_by_query(name, position):
    config = CONFIGS[name]
    module, x = attention(config, 32, parts=position.parts(causal=True)), vectors(2, 23, 32)
    for row, out in zip(x, run(module, x), strict=True):
        torch.testing.assert_close(out, expected(module, row, config), rtol=0, atol=1e-12)


@torch.no_grad()
def test_blocks_are_counted_by_rank_in_a_document():
    module, x = attention(NSA, 32, parts=vt.Rope().parts(causal=True)), vectors(2, 23, 32)
    for pad, cut in (("left", slice(7, None)), ("right", slice(0, 16))):
        out = run(module, x, pos=Positions.rows([23, 16], pad=pad))
        torch.testing.assert_close(out[0], expected(module, x[0], NSA), rtol=0, atol=1e-12)
        torch.testing.assert_close(out[1, cut], expected(module, x[1, cut], NSA), rtol=0, atol=1e-12)
        assert torch.equal(out[1, :7] if pad == "left" else out[1, 16:], torch.zeros(7, 32, dtype=F64))
    module = attention(NSA, 32, parts=vt.Rope().parts(causal=True), mask=CAUSAL)
    out = run(module, x, pos=Positions.packed([[23], [5, 18]]))
    for row, start, end in ((0, 0, 23), (1, 0, 5), (1, 5, 23)):
        want = expected(module, x[row, start:end], NSA)
        torch.testing.assert_close(out[row, start:end], want, rtol=0, atol=1e-12)


@torch.no_grad()
def test_keys_in_any_arrangement():
    """As a pool of blocks or a ring has them."""
    scores, gates = vectors(4, 23, 23), vectors(1, 4, 23, 3, seed=1)
    pos, places = Positions.arange(1, 23), torch.randperm(23, generator=torch.Generator().manual_seed(2))
    plain, moved = pos.against(pos), pos.against(Positions.of(places[None]))
    masked = scores[None].masked_fill(~dense(visible(CAUSAL, plain), plain), float("-inf"))
    one, _ = GatedBranches(NSA, 2, gates)(masked, None, plain)
    other, _ = GatedBranches(NSA, 2, gates)(masked[..., places], None, moved)
    torch.testing.assert_close(other, one[..., places], rtol=0, atol=1e-14)


def test_the_heads_of_a_group_choose_together_by_their_weights():
    """Blocks of one token; two heads share a key head. One gives 0.6, 0.4, 0 of its weight, the other 0.1, 0.4, 0.5:
    together the second has most. By scores alone, or each head by itself, it would be another."""
    config = vt.NativeSparse(2, 1, near=1, blocks=vt.BlockChooser(1, keep=2, first=0, recent=1))
    shares = torch.tensor([[0.6, 0.4, 1e-9, 1e-9], [0.1, 0.4, 0.5, 1e-9]], dtype=F64)
    scores = shares.log()[:, None].expand(2, 4, 4) + torch.tensor([0.0, 40.0], dtype=F64)[:, None, None]
    only_chosen = torch.tensor([0.0, 1.0, 0.0], dtype=F64).expand(1, 2, 4, 3)
    together = branches(config, scores, only_chosen, Positions.arange(1, 4))[0, :, 3]
    assert (together > 1e-12).tolist() == [[False, True, False, True]] * 2
    apart = branches(replace(config, kv_heads=2), scores, only_chosen, Positions.arange(1, 4), kv_heads=2)[0, :, 3]
    assert (apart > 1e-12).tolist() == [[True, False, False, True], [False, False, True, True]]


def test_of_equal_blocks_the_later_is_chosen():
    config = vt.NativeSparse(1, near=1, blocks=vt.BlockChooser(2, keep=3, first=1, recent=1))
    only_chosen = torch.tensor([0.0, 1.0, 0.0], dtype=F64).expand(1, 1, 10, 3)
    weights = branches(config, torch.zeros(1, 10, 10, dtype=F64), only_chosen, Positions.arange(1, 10))[0, 0]
    assert weights[9].nonzero().flatten().tolist() == [0, 1, 6, 7, 8, 9]
    assert weights[4].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_a_block_that_is_not_seen_whole_is_neither_seen_as_one_nor_chosen():
    """A window of 6 over blocks of 4: query 10 sees 5 to 10, and of the block 4 to 7 not all."""
    config = vt.NativeSparse(1, near=1, blocks=vt.BlockChooser(4, keep=2, first=0, recent=1))
    pos = Positions.arange(1, 12)
    pair, zeros = pos.against(pos), torch.zeros(1, 1, 12, 12, dtype=F64)
    masked = zeros.masked_fill(~dense(visible(CAUSAL & vt.Window(6), pair), pair), float("-inf"))
    for gate, wanted in ((0, {10: [], 9: [4, 5, 6, 7]}), (1, {10: [8, 9, 10], 9: [4, 5, 6, 7, 8, 9]})):
        gates = torch.eye(3, dtype=F64)[gate].expand(1, 1, 12, 3)
        weights, _ = GatedBranches(config, 1, gates)(masked, None, pair)
        for query, tokens in wanted.items():
            assert weights[0, 0, query].nonzero().flatten().tolist() == tokens


def test_both_sides_where_nothing_hides_what_comes_later():
    config = vt.NativeSparse(1, near=2, blocks=vt.BlockChooser(2, keep=2, first=0))
    pos = Positions.arange(1, 10)
    for gate, tokens in ((1, range(2, 8)), (2, range(3, 6))):
        gates = torch.eye(3, dtype=F64)[gate].expand(1, 1, 10, 3)
        weights, _ = GatedBranches(config, 1, gates)(torch.zeros(1, 1, 10, 10, dtype=F64), None, pos.against(pos))
        assert weights[0, 0, 4].nonzero().flatten().tolist() == list(tokens)


def test_sinks_take_weight_in_every_branch():
    config = vt.NativeSparse(1, near=3, blocks=vt.BlockChooser(3, keep=2, first=0), scores=vt.Scores(sinks=True))
    pos = Positions.arange(1, 3)
    sinks = torch.zeros(1, 1, 1, 1, dtype=F64)
    for gate, left in ((0, 0.5), (1, 0.75), (2, 0.75)):  # one block beside the sink, or three tokens
        gates = torch.eye(3, dtype=F64)[gate].expand(1, 1, 3, 3)
        weights, _ = GatedBranches(config, 1, gates)(torch.zeros(1, 1, 3, 3, dtype=F64), sinks, pos.against(pos))
        assert float(weights[0, 0, 2].sum()) == pytest.approx(left)


# ---- in a model


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_blocks_are_reopened_when_tokens_are_taken_back(kind):
    check_taken_back(small_model(NSA), kind, range(5, 12))


@pytest.mark.parametrize("position", ["rope", "alibi", "fox", "cope", "path", "shaw"])
def test_any_encoding_through_a_cache(position):
    check_cached(small_model(NSA, position=position), "paged", (5, 3, *(1,) * 15))


def test_a_window_layer_in_a_ring():
    check_cached(small_model(NSA, window=7), "ring")


def test_generate_gives_what_one_pass_gives():
    check_generated(small_model(NSA))


def test_speculation_gives_what_plain_steps_give():
    m, draft = small_model(NSA), small_model(NSA, layers=1)
    prompt = TOKENS[0, :9].tolist()
    plain = vt.generate(m, prompt, max_tokens=12, temperature=0.0)
    guessed = vt.generate(m, prompt, max_tokens=12, temperature=0.0, draft=vt.DraftModel(draft))
    assert guessed.tokens == plain.tokens


def test_saved_and_loaded(tmp_path):
    again = check_saved(small_model(replace(NSA, scores=vt.Scores(sinks=True))), tmp_path)
    assert "BlockChooser(size=3, keep=4)" in again.summary()


def test_the_costs_are_those_that_torch_counts():
    check_costs(vt.decoder(vocab=19, width=32, layers=2, attention=NSA))


def test_what_is_kept_of_a_token_is_what_grouped_query_attention_keeps():
    kept, grouped = NSA.cache_shape(32), vt.GroupedQuery(4, 2).cache_shape(32)
    assert kept == replace(grouped, every_key=True)


def test_gradients():
    """Also past the choice, which has none."""
    config = replace(NSA, heads=2, kv_heads=1, head_dim=2, near=2, blocks=vt.BlockChooser(2, keep=2, first=0, recent=1))
    module = attention(config, 4, parts=vt.Rope().parts(causal=True))
    check_gradients(module, run, vectors(1, 7, 4))


def test_gates_begin_at_a_half_and_are_learned():
    m = vt.build(vt.decoder(vocab=19, width=32, layers=1, attention=NSA)).double()
    gate = m.blocks[0].sublayers[0].scorer.normaliser.map.weight
    assert gate.shape == (12, 32)
    assert m.blocks[0].sublayers[0].scorer.normaliser.map.bias is None
    m(TOKENS).square().mean().backward()
    assert bool((gate.grad.abs().amax(1) > 0).all())  # every branch of every head
    with torch.no_grad():
        gates = m.blocks[0].sublayers[0].scorer.normaliser(vectors(1, 5, 32)).gates
    assert gates.shape == (1, 4, 5, 3)
    assert float((gates - 0.5).abs().max()) < 0.2


# ---- what others see


@torch.no_grad()
def test_captured_weights_are_the_weights_used_and_sum_to_the_gates():
    m = small_model(NSA, layers=1)
    captured = vt.capture(m, TOKENS[:1], verify=True)
    assert captured.error < 1e-12
    assert captured.kernels == {"reference"}
    x = m.blocks[0].steps[0].before(m.embed(TOKENS[:1], Positions.arange(1, 23)))
    gates = m.blocks[0].sublayers[0].scorer.normaliser(x).gates[0]
    sums = captured.weights(0).sum(-1)
    torch.testing.assert_close(sums[:, 2:], gates.sum(-1)[:, 2:])
    torch.testing.assert_close(sums[:, :2], gates[..., 1:].sum(-1)[:, :2])  # before a block is whole


@torch.no_grad()
def test_some_heads_and_queries_have_the_weights_they_have_among_all():
    """Heads choose together: one alone is worked out with the others."""
    m = small_model(NSA, layers=1, window=9)
    every = vt.capture(m, TOKENS[:1]).weights(0)
    some = vt.capture(m, TOKENS[:1], heads=[3, 1], queries=[20, 7, 22], verify=True)
    assert some.error < 1e-12
    torch.testing.assert_close(some.weights(0), every[[3, 1]][:, [7, 20, 22]])
    assert some.heads(0) == (3, 1)
    calls = []
    with observing(sites_of(m), calls.append):
        m(TOKENS[:1])
    values, index = next(tiles(calls[0], [2], [21])).top(3)
    torch.testing.assert_close(values[0, 0, 0], every[2, 21].topk(3).values)
    assert values.shape == index.shape == (1, 1, 1, 3)


def test_a_share_of_the_key_heads_for_each_process():
    spec = vt.decoder(vocab=19, width=32, layers=1, attention=NSA)
    own = divided(spec, 0, 2).layers[0].attention
    assert own == replace(NSA, heads=2, kv_heads=1, head_dim=8)
    shapes = {name: tuple(p.shape) for name, p in empty_model(divided(spec, 0, 2)).named_parameters()}
    assert shapes["blocks.0.steps.0.sublayer.scorer.normaliser.map.weight"] == (6, 32)
    with pytest.raises(Refused, match="1 key/value heads do not divide among 2 processes, and each chooses once"):
        divided(replace_attention(spec, replace(NSA, kv_heads=1)), 0, 2)


def replace_attention(spec: vt.ModelSpec, config: vt.NativeSparse, **other) -> vt.ModelSpec:
    return replace(spec, layers=(replace(spec.layers[0], attention=config, **other),))


def test_no_native_step_takes_it_for_a_plain_softmax():
    scorers = [
        vt.build(vt.decoder(vocab=19, width=32, layers=1, attention=config)).blocks[0].sublayers[0].scorer
        for config in (NSA, NSA.grouped)
    ]
    with pytest.raises(CannotLower, match="only a plain softmax"):
        scorers[0].score_form()
    assert scorers[1].score_form().scale == 8**-0.5


def test_said_in_a_few_words():
    assert NSA.describe(32) == ("native sparse, 4 / 2 × 8", "4 blocks of 3", "4 near")
    assert replace(NSA, scores=vt.Scores(sinks=True)).describe(32)[3:] == ("sinks",)


def test_passes_are_told_apart_by_their_settings_alone():
    one, other = (GatedBranches(NSA, 2, vectors(1, 4, 5, 3, seed=seed)) for seed in (0, 1))
    assert one == other
    assert one != GatedBranches(replace(NSA, near=5), 2, one.gates)
    assert "gates" not in repr(one)


def test_the_sizes_of_the_paper_unless_others_are_given():
    assert vt.NativeSparse(4) == vt.NativeSparse(4, None, None, 512, vt.BlockChooser(64, 16, 1, 2), vt.Scores())


def test_what_cannot_be():
    for wrong in ({"size": 0}, {"first": -1}, {"recent": 0}):
        with pytest.raises(BadInput, match="a query sees its own block"):
            replace(BLOCKS, **wrong)
    with pytest.raises(BadInput, match="keep=2: the first 1 and the last 2 are always among them"):
        replace(BLOCKS, keep=2)
    with pytest.raises(BadInput, match="near=0: a query sees itself"):
        replace(NSA, near=0)
    with pytest.raises(BadInput, match="4 heads over 3 key/value heads"):
        replace(NSA, kv_heads=3).shape(32)
    with pytest.raises(Refused, match="each branch is a softmax, not Sparsemax"):
        replace(NSA, scores=vt.Scores(normalise=vt.Sparsemax()))
    with pytest.raises(Refused, match="self-attention only"):
        NSA.build_cross(32, None)
    spec = vt.decoder(vocab=19, width=32, layers=1, attention=NSA)
    with pytest.raises(Refused, match="NativeSparse chooses blocks by itself"):
        vt.build(replace_attention(spec, NSA, indexer=vt.TopKIndexer(2, 1, 4)))
    for kind in (vt.SinkCache(2, 8), vt.HeavyHitterCache(heavy=8, recent=8)):
        with pytest.raises(Refused, match="looks at every key before a query"):
            vt.build(spec).new_cache(1, kind=kind)
    for kernel in ("sdpa", "flex"):
        with pytest.raises(Refused, match=f"{kernel} has softmax alone, not GatedBranches"):
            vt.build(spec, kernel=kernel)(TOKENS)
