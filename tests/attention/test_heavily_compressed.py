"""HCA: transformers' layer, caches and padding against one pass, sinks, values that arrive turned, costs, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.attention.compressed_layers import both, run_ours, run_theirs
from tests.attention.helpers import attention, check_gradients, vectors
from tests.attention.model_checks import (
    TOKENS,
    check_cached,
    check_costs,
    check_generated,
    check_taken_back,
    small_model,
)
from vantage.attention.compressed import NearBias, near_only
from vantage.attention.key_windows import KeyWindows
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.inspect import cost
from vantage.spec.parts import Dense, Shape
from vantage.spec.positions import Positions

HCA = vt.HeavilyCompressed(4, ratio=3, near=4, turned_values=True, scores=vt.Scores(sinks=True))


@torch.no_grad()
@pytest.mark.parametrize("ratio", [2, 4, 7])
@pytest.mark.parametrize("length", [1, 6, 23])
def test_transformers_layer(ratio, length):
    ours, theirs, rotary = both("hca", ratio)
    x = vectors(2, length, 24, dtype=torch.float32)
    torch.testing.assert_close(run_ours(ours, x), run_theirs(theirs, rotary, x), rtol=1e-5, atol=2e-6)


@torch.no_grad()
def test_transformers_layer_row_by_row_where_ours_is_padded():
    """transformers closes windows by slot; each of its rows alone is what ours gives to a padded batch."""
    ours, theirs, rotary = both("hca", 3)
    x = vectors(2, 11, 24, dtype=torch.float32)
    for pad, cut in (("left", slice(4, None)), ("right", slice(0, 7))):
        out = run_ours(ours, x, Positions.rows([11, 7], pad=pad))
        torch.testing.assert_close(out[:1], run_theirs(theirs, rotary, x[:1]), rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(out[1:, cut], run_theirs(theirs, rotary, x[1:, cut]), rtol=1e-5, atol=2e-6)


def model(config=HCA, **other):
    return small_model(config, **other)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_a_window_is_reopened_when_tokens_are_taken_back(kind):
    """Wherever a draft ends and is cut, in the middle of a window or at its end."""
    check_taken_back(model(), kind, range(5, 13))


def test_a_window_layer_keeps_what_its_entries_are_made_of():
    """A mask with a window shows an entry as long as it shows the window's last token."""
    m = model(replace(HCA, ratio=5), window=4)
    assert m.spec.caches[0][0].before == 4
    check_cached(m, "ring")


@torch.no_grad()
def test_far_tokens_reach_a_query_through_their_window_alone():
    """With nothing near but itself, a token is seen once its window is whole."""
    m = model(replace(HCA, near=1), layers=1, position="none")
    changed = TOKENS.clone()
    changed[:, 1] = (changed[:, 1] + 1) % 19
    moved = (m(TOKENS) - m(changed)).abs().amax((0, 2)) > 1e-9
    assert moved.tolist() == [t >= 2 or t == 1 for t in range(23)]  # seen by itself, and from its window's end on
    changed = TOKENS.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 19
    moved = (m(TOKENS) - m(changed)).abs().amax((0, 2)) > 1e-9
    assert moved.tolist() == [t >= 5 or t == 3 for t in range(23)]


@torch.no_grad()
def test_values_arrive_turned_by_their_distance():
    """All positions further on by the same amount leave the output as it is; values turned one way alone would not.
    The windows stay where they are: they go by rank."""
    parts = vt.Rope().parts(causal=True)
    module, x = attention(HCA, 32, parts=parts), vectors(1, 10, 32)
    order = torch.arange(10)[None]
    here, there = (run_ours(module, x, Positions.of(order + by, order=order)) for by in (0, 57))
    torch.testing.assert_close(here, there, rtol=0, atol=1e-9)
    module.turned_back = lambda out, pos: out
    assert (run_ours(module, x, Positions.of(order + 57, order=order)) - here).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("position", ["rope", "lerope"])
def test_turning_back_is_the_other_way(position):
    spec = vt.decoder(vocab=9, width=16, layers=1, heads=2, position=position, max_length=32)
    (turning,) = sharpen(vt.build(spec)).double().blocks[0].sublayers[0].qk
    x, pos = vectors(2, 2, 5, 8), Positions.arange(2, 5, start=3)
    torch.testing.assert_close(turning.back(turning.key(x, pos), pos), x)
    assert (turning.key(x, pos) - x).abs().max() > 0.1


@pytest.mark.parametrize("position", ["rope", "alibi", "fox", "fire", "self-extend", "shaw"])
def test_any_encoding_stands_where_tokens_and_entries_stand(position):
    check_cached(model(replace(HCA, turned_values=False), position=position), "paged", (5, 3, *(1,) * 15))


def test_a_bias_of_all_pairs_is_added_to_what_is_seen():
    """Of the tokens a query sees itself and the one before; entries it sees as the mask allows."""
    pos = Positions.arange(1, 6)
    windows = KeyWindows.of(pos.against(pos), 3, 2, causal=True)
    assert (windows.tokens, windows.seen.shape[1]) == (6, 8)
    bias, q = vectors(1, 2, 6, 8), vectors(1, 2, 6, 4, seed=1)
    got = near_only(Dense(bias), NearBias(None, 2, windows.tokens), pos.against(windows.seen), q)
    assert isinstance(got, Dense)
    near = (torch.arange(6)[:, None] - torch.arange(6)).abs() <= 1
    torch.testing.assert_close(got.value[..., 6:], bias[..., 6:])
    torch.testing.assert_close(got.value[..., :6], bias[..., :6].masked_fill(~near, -torch.inf))


def test_generate_gives_what_one_pass_gives():
    check_generated(model())


def test_the_costs_are_those_that_torch_counts():
    check_costs(vt.decoder(vocab=19, width=32, layers=2, attention=replace(HCA, maps=vt.SmallMaps(8, 1e-6, 6, 2))))


def test_what_is_kept_of_a_token():
    """A key that is its own value, C and Z: three times the head. The published form keeps 1/m of one."""
    kept = HCA.cache_shape(32)
    assert (kept.kv_heads, kept.key_dim, kept.single) == (1, 8, True)
    assert [stream.width for stream in kept.streams] == [16]
    spec = vt.decoder(vocab=19, width=32, layers=1, attention=HCA)
    assert cost(spec, context=64).cache_a_token == 2 * 24  # in bfloat16


@torch.no_grad()
def test_captured_weights_are_the_weights_used():
    """An entry's weight stands at the last token of its window."""
    m = model(layers=1)
    captured = vt.capture(m, TOKENS[:1], keep="weights", verify=True)
    part = captured.parts["self", 0][0]
    assert part.error < 1e-9
    seen = part.data["weights"][0, 0, 22] > 0
    assert seen.nonzero().flatten().tolist() == [2, 5, 8, 11, 14, 17, 19, 20, 21, 22]


def test_gradients():
    module = attention(replace(HCA, heads=2, head_dim=4, ratio=2, near=2), 6, parts=vt.Rope().parts(causal=True))
    check_gradients(module, run_ours, vectors(1, 5, 6))


def test_the_sizes_of_deepseek_v4_unless_others_are_given():
    assert vt.HeavilyCompressed(4) == vt.HeavilyCompressed(4, None, 128, 128, None)
    assert vt.HeavilyCompressed(1).shape(8) == Shape(8, 1, 1, 8, 8, rotary_dim=8)
    assert vt.HeavilyCompressed(2, 1, rope_dim=0).shape(8) == Shape(8, 2, 1, 1, 1, rotary_dim=0)


def test_what_cannot_be():
    with pytest.raises(BadInput, match="0 heads"):
        replace(HCA, heads=0).shape(32)
    with pytest.raises(BadInput, match="heads of 0"):
        replace(HCA, head_dim=0).shape(32)
    with pytest.raises(BadInput, match="position acts on -1"):
        replace(HCA, rope_dim=-1).shape(32)
    with pytest.raises(BadInput, match="ratio=1, near=4"):
        replace(HCA, ratio=1).shape(32)
    with pytest.raises(BadInput, match="ratio=3, near=0"):
        replace(HCA, near=0).shape(32)
    with pytest.raises(BadInput, match="width 30 does not divide into 4 heads"):
        HCA.shape(30)
    with pytest.raises(BadInput, match="position acts on 9"):
        replace(HCA, rope_dim=9).shape(32)
    with pytest.raises(BadInput, match="4 heads do not divide into 3 groups"):
        replace(HCA, maps=vt.SmallMaps(out_groups=3)).shape(32)
    with pytest.raises(Refused, match="self-attention only"):
        HCA.build_cross(32, None)
    with pytest.raises(Refused, match="cannot turn an output back"):
        model(position="xpos")
    with pytest.raises(Refused, match="CoPE looks at every token between key and query"):
        model(position="cope")
    spec = model().spec
    with pytest.raises(Refused, match="CompressedSparse, which chooses"):
        vt.build(replace(spec, layers=(replace(spec.layers[0], indexer=vt.TopKIndexer(2, 1, 4)),)))
    for kind in (vt.SinkCache(2, 8), vt.HeavyHitterCache(heavy=8, recent=8)):
        with pytest.raises(Refused, match="looks at every key before a query"):
            model().new_cache(1, kind=kind)
    axes = Positions.of_axes(torch.arange(6).expand(3, 1, 6))
    with pytest.raises(Refused, match="positions of one axis"):
        model()(TOKENS[:1, :6], positions=axes)
