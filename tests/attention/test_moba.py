"""MoBA: worked by hand, written out query by query, blocks by rank, caches and padding, costs, capture, refusals."""

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
from vantage.attention.moba import ChosenBlocks
from vantage.errors import Refused
from vantage.inspect.kernels import kernel_choices
from vantage.parallel.tensor import divided
from vantage.spec.masks import Causal, Everything, Mask, SameSegment, dense, visible
from vantage.spec.native import CannotLower
from vantage.spec.positions import Positions
from vantage.spec.transforms import chain

MOBA = vt.MoBA(4, 2, size=3, keep=3)
CAUSAL = Causal() & SameSegment()


def weights_of(rule: ChosenBlocks, scores_HTS: Tensor, pos: Positions, mask: Mask = CAUSAL) -> Tensor:
    pair = pos.against(pos)
    masked = scores_HTS[None].masked_fill(~dense(visible(mask, pair), pair), float("-inf"))
    return rule(masked, None, pair)[0]


# ---- the rule


def test_worked_by_hand():
    """Seven keys in blocks of two, of which the last query keeps two: its own, 6, and one of three.

    Its scores are 0, 3 | 2, 2 | -9, 9 | 0. The means are 1.5, 2 and 0: keys 2 and 3 are chosen, and neither the
    highest key, 5, nor the second highest, 1. Weights are e², e², 1 over their sum.
    """
    scores = torch.zeros(1, 7, 7, dtype=F64)
    scores[0, 6] = torch.tensor([0, 3, 2, 2, -9, 9, 0], dtype=F64)
    row = weights_of(ChosenBlocks(2, 2), scores, Positions.arange(1, 7))[0, 0, 6]
    e2 = float(torch.tensor(2.0, dtype=F64).exp())
    assert row.tolist() == pytest.approx([0, 0, e2 / (2 * e2 + 1), e2 / (2 * e2 + 1), 0, 0, 1 / (2 * e2 + 1)])
    alone = weights_of(ChosenBlocks(2, 1), scores, Positions.arange(1, 7))[0, 0, 6]
    assert alone.tolist() == [0, 0, 0, 0, 0, 0, 1]


def written_out(config: vt.MoBA, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(H, T, e), query by query: pooled keys, and a choice for each query head."""
    (H, T, d), G = q.shape, len(k)
    out = torch.zeros(H, T, v.shape[-1], dtype=q.dtype)
    for h in range(H):
        for t in range(T):
            own, keys = t // config.size, k[h * G // H]
            pooled = keys[: own * config.size].unflatten(0, (own, config.size)).mean(1)
            ranked = sorted(range(own), key=lambda b, s=pooled @ q[h, t]: -float(s[b]))
            chosen = {own, *ranked[: config.keep - 1]}
            some = [j for j in range(t + 1) if j // config.size in chosen]
            out[h, t] = (keys[some] @ q[h, t] / d**0.5).softmax(0) @ v[h * G // H, some]
    return out


def expected(module, x: Tensor, config: vt.MoBA) -> Tensor:
    """(T, D) of one row x (T, D)."""
    q, k, v = module.project(x[None])
    pos = Positions.arange(1, len(x))
    q, k = chain(module.qk, "query", q, pos), chain(module.qk, "key", k, pos)
    return module.out(written_out(config, q[0], k[0], v[0]).transpose(0, 1).flatten(1))


CONFIGS = {
    "grouped": MOBA,
    "one key head": replace(MOBA, kv_heads=1, keep=2),
    "multi-head": replace(MOBA, kv_heads=None, size=2, keep=5),
    "own block alone": replace(MOBA, keep=1),
    "single tokens": replace(MOBA, size=1, keep=6),
    "all blocks": replace(MOBA, size=8, keep=9),
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
def test_as_many_blocks_as_there_are_is_full_attention():
    every = small_model(replace(MOBA, keep=20))
    torch.testing.assert_close(every(TOKENS), small_model(vt.GroupedQuery(4, 2))(TOKENS), rtol=0, atol=1e-12)
    assert not torch.allclose(small_model(MOBA)(TOKENS), every(TOKENS))


@torch.no_grad()
def test_blocks_are_counted_by_rank_in_a_document():
    module, x = attention(MOBA, 32, parts=vt.Rope().parts(causal=True)), vectors(2, 23, 32)
    for pad, cut in (("left", slice(7, None)), ("right", slice(0, 16))):
        out = run(module, x, pos=Positions.rows([23, 16], pad=pad))
        torch.testing.assert_close(out[0], expected(module, x[0], MOBA), rtol=0, atol=1e-12)
        torch.testing.assert_close(out[1, cut], expected(module, x[1, cut], MOBA), rtol=0, atol=1e-12)
    module = attention(MOBA, 32, parts=vt.Rope().parts(causal=True), mask=CAUSAL)
    out = run(module, x, pos=Positions.packed([[23], [5, 18]]))
    for row, start, end in ((0, 0, 23), (1, 0, 5), (1, 5, 23)):
        want = expected(module, x[row, start:end], MOBA)
        torch.testing.assert_close(out[row, start:end], want, rtol=0, atol=1e-12)


@torch.no_grad()
def test_keys_in_any_arrangement():
    """As a pool of blocks or a ring has them."""
    scores, rule = vectors(4, 23, 23), ChosenBlocks(3, 3)
    pos, places = Positions.arange(1, 23), torch.randperm(23, generator=torch.Generator().manual_seed(2))
    plain, moved = pos.against(pos), pos.against(Positions.of(places[None]))
    masked = scores[None].masked_fill(~dense(visible(CAUSAL, plain), plain), float("-inf"))
    one, other = rule(masked, None, plain), rule(masked[..., places], None, moved)
    torch.testing.assert_close(other[0], one[0][..., places], rtol=0, atol=1e-14)
    torch.testing.assert_close(other[1], one[1], rtol=0, atol=1e-14)


def test_of_equal_blocks_the_later_is_chosen():
    weights = weights_of(ChosenBlocks(2, 3), torch.zeros(1, 10, 10, dtype=F64), Positions.arange(1, 10))[0, 0]
    assert weights[9].nonzero().flatten().tolist() == [4, 5, 6, 7, 8, 9]
    assert weights[4].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_a_block_that_is_not_seen_whole_is_not_chosen():
    """A window of 6 over blocks of 4: query 10 sees 5 to 10, and of the block 4 to 7 not all."""
    zeros, mask = torch.zeros(1, 12, 12, dtype=F64), CAUSAL & vt.Window(6)
    weights = weights_of(ChosenBlocks(4, 2), zeros, Positions.arange(1, 12), mask)[0, 0]
    assert weights[10].nonzero().flatten().tolist() == [8, 9, 10]
    assert weights[9].nonzero().flatten().tolist() == [4, 5, 6, 7, 8, 9]


def test_both_sides_where_nothing_hides_what_comes_later():
    scores = torch.zeros(1, 8, 8, dtype=F64)
    scores[0, 2, 6:] = 1.0
    weights = weights_of(ChosenBlocks(2, 2), scores, Positions.arange(1, 8), Everything())[0, 0]
    assert weights[2].nonzero().flatten().tolist() == [2, 3, 6, 7]


def test_sinks_take_weight_and_the_sum_is_known():
    pos = Positions.arange(1, 5)
    zeros = torch.zeros(1, 1, 5, 5, dtype=F64).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    weights, lse = ChosenBlocks(2, 2)(zeros, torch.zeros(1, 1, 1, 1, dtype=F64), pos.against(pos))
    assert float(weights[0, 0, 4].sum()) == pytest.approx(0.75)  # its own, a block of two, and the sink
    assert float(lse[0, 0, 4].exp()) == pytest.approx(4)


# ---- in a model


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_blocks_are_reopened_when_tokens_are_taken_back(kind):
    check_taken_back(small_model(MOBA), kind, range(5, 12))


@pytest.mark.parametrize("position", ["rope", "alibi", "fox", "cope", "path", "shaw"])
def test_any_encoding_through_a_cache(position):
    check_cached(small_model(MOBA, position=position), "paged", (5, 3, *(1,) * 15))


def test_a_window_layer_in_a_ring():
    check_cached(small_model(MOBA, window=7), "ring")


def test_generate_gives_what_one_pass_gives():
    check_generated(small_model(MOBA))


def test_saved_and_loaded(tmp_path):
    check_saved(small_model(replace(MOBA, scores=vt.Scores(sinks=True))), tmp_path)


def test_the_costs_are_those_that_torch_counts():
    check_costs(vt.decoder(vocab=19, width=32, layers=2, attention=MOBA))


def test_gradients():
    """Past the choice, which has none."""
    module = attention(
        replace(MOBA, heads=2, kv_heads=1, head_dim=2, size=2, keep=2), 4, parts=vt.Rope().parts(causal=True)
    )
    check_gradients(module, run, vectors(1, 7, 4))


# ---- what others see


@torch.no_grad()
def test_captured_weights_are_the_weights_used():
    m = small_model(MOBA, layers=1)
    captured = vt.capture(m, TOKENS[:1], verify=True)
    assert captured.error < 1e-12
    weights = captured.weights(0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 23, dtype=F64))
    assert int((weights[:, -1] > 0).sum(-1).max()) == 8  # two blocks of three, and two tokens of its own
    some = vt.capture(m, TOKENS[:1], heads=[3, 1], queries=[20, 7, 22], verify=True)
    torch.testing.assert_close(some.weights(0), weights[[3, 1]][:, [7, 20, 22]])


def test_what_runs_it():
    """Some queries at a time, on a CPU: nothing as large as all pairs is formed."""
    m = vt.build(vt.decoder(vocab=19, width=32, layers=1, attention=MOBA))
    assert {choice.kernel for choice in kernel_choices(m, context=65_536, device="cpu")} == {"blocks"}
    with pytest.raises(CannotLower, match="only a plain softmax"):
        m.blocks[0].sublayers[0].scorer.score_form()


def test_a_share_of_the_heads_for_each_process():
    """Every query head chooses for itself, so key heads may be shared as in grouped-query attention."""
    spec = vt.decoder(vocab=19, width=32, layers=1, attention=MOBA)
    assert divided(spec, 0, 2).layers[0].attention == replace(MOBA, heads=2, kv_heads=1, head_dim=8)
    assert divided(spec, 0, 4).layers[0].attention == replace(MOBA, heads=1, kv_heads=1, head_dim=8)


def test_said_in_a_few_words():
    assert MOBA.describe(32) == ("mixture of blocks, 4 / 2 × 8", "3 blocks of 3")


def test_what_cannot_be():
    with pytest.raises(Refused, match="share one softmax, not Sparsemax"):
        vt.MoBA(4, scores=vt.Scores(normalise=vt.Sparsemax()))
    with pytest.raises(Refused, match="self-attention only"):
        MOBA.build_cross(32, None)
    spec = vt.decoder(vocab=19, width=32, layers=1, attention=MOBA)
    layer = replace(spec.layers[0], indexer=vt.TopKIndexer(4, 2, 8))
    with pytest.raises(Refused, match="MoBA chooses blocks by itself"):
        vt.build(replace(spec, layers=(layer,)))
