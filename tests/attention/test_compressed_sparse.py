"""CSA: transformers' layer and its choice, caches and padding against one pass, costs, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.attention.compressed_layers import both, run_ours, run_theirs
from tests.attention.helpers import ShapeRecord, attention, check_gradients, vectors
from tests.attention.model_checks import TOKENS, check_cached, check_costs, check_taken_back, small_model
from vantage.attention.compressed import ChoiceInputs
from vantage.attention.key_windows import KeyWindows
from vantage.errors import BadInput
from vantage.spec.masks import Causal
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

CHOICE = vt.EntryChooser(2, heads=3, head_dim=8, rope_dim=4, qk=(vt.Rope(),))
CSA = vt.CompressedSparse(4, ratio=2, near=3, turned_values=True, choice=CHOICE)


@torch.no_grad()
@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize("length", [1, 7, 12, 23])
def test_transformers_layer(ratio, length):
    ours, theirs, rotary = both("csa", ratio)
    x = vectors(2, length, 24, dtype=torch.float32)
    torch.testing.assert_close(run_ours(ours, x), run_theirs(theirs, rotary, x), rtol=1e-5, atol=2e-6)


@torch.no_grad()
def test_transformers_layer_row_by_row_where_ours_is_padded():
    ours, theirs, rotary = both("csa", 2)
    x = vectors(2, 13, 24, dtype=torch.float32)
    for pad, cut in (("left", slice(4, None)), ("right", slice(0, 9))):
        out = run_ours(ours, x, Positions.rows([13, 9], pad=pad))
        torch.testing.assert_close(out[:1], run_theirs(theirs, rotary, x[:1]), rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(out[1:, cut], run_theirs(theirs, rotary, x[1:, cut]), rtol=1e-5, atol=2e-6)


@torch.no_grad()
def test_the_chosen_are_those_of_transformers_indexer():
    ours, theirs, _ = both("csa", 2)
    x = vectors(2, 14, 24, dtype=torch.float32)
    pos, low = Positions.arange(2, 14), ours.q_low_norm(ours.q_down(x))
    windows = KeyWindows.of(pos.against(pos), 2, 5, causal=True)
    chosen = ours.choice.choose(ChoiceInputs(x, low, ours.choice.keep(x), windows, pos, Causal()))
    picked = theirs.compressor.indexer(x, low, pos.pos, None, 0)
    for b in range(2):
        for t in range(14):
            whole = (t + 1) // 2
            mine = [e for e in range(whole) if chosen[b, t, e]]
            assert mine == sorted(e for e in picked[b, t].tolist() if e >= 0), (b, t)
            assert len(mine) == min(3, whole)


def model(config=CSA, **other):
    return small_model(config, **other)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_overlap_is_reopened_when_tokens_are_taken_back(kind):
    check_taken_back(model(), kind, range(5, 11))


def test_a_window_layer_keeps_the_window_before_too():
    m = model(replace(CSA, ratio=3), window=4)
    assert m.spec.caches[0][0].before == 5
    check_cached(m, "ring")


@torch.no_grad()
def test_an_entry_that_is_not_chosen_has_no_weight():
    m = model(layers=1)
    part = vt.capture(m, TOKENS[:1], keep="weights", verify=True).parts["self", 0][0]
    assert part.error < 1e-9
    far = part.data["weights"][0, :, 22, :19]  # 20, 21 and 22 are near, and 19 is the last of a window
    assert int((far > 0).any(0).sum()) <= 2
    assert set((far > 0).any(0).nonzero().flatten().tolist()) <= set(range(1, 23, 2))


@torch.no_grad()
def test_with_room_for_all_entries_nothing_is_chosen():
    every = model(replace(CSA, choice=replace(CHOICE, keep=11)))
    few = model(replace(CSA, choice=replace(CHOICE, keep=2)))
    assert torch.equal(every(TOKENS[:, :5]), few(TOKENS[:, :5]))  # two entries
    assert (every(TOKENS) - few(TOKENS)).abs().max() > 1e-3


def test_the_choice_has_no_gradient_and_the_rest_has():
    m = model(layers=1).float()
    m(TOKENS).square().mean().backward()
    module = m.blocks[0].sublayers[0]
    for name, parameter in module.named_parameters():
        if name.startswith("choice."):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert bool((parameter.grad != 0).any()), name


@pytest.mark.sampled
def test_gradients():
    config = replace(CSA, heads=2, head_dim=4, near=2, choice=replace(CHOICE, keep=9))
    module = attention(config, 6, parts=vt.Rope().parts(causal=True))
    check_gradients(module, run_ours, vectors(1, 5, 6))


@pytest.mark.parametrize("keep", [2, 8, 64])  # fewer than the 8 entries, as many, and more: then none is chosen
def test_the_costs_are_those_that_torch_counts(keep):
    config = replace(CSA, choice=replace(CHOICE, keep=keep), maps=vt.SmallMaps(8, 1e-6, 6, 2))
    check_costs(vt.decoder(vocab=19, width=32, layers=2, attention=config))


@pytest.mark.parametrize("position", ["rope", "fox", "fire"])
def test_any_encoding_stands_where_tokens_and_entries_stand(position):
    """A forget gate keeps a stream of its own behind those of the entries and of the choice."""
    check_cached(model(replace(CSA, turned_values=False), position=position), "paged", (5, 3, *(1,) * 15))


def test_the_chooser_builds_its_own_transforms_for_its_own_heads():
    told = ShapeRecord()
    attention(replace(CSA, turned_values=False, choice=replace(CHOICE, qk=(told,))), 32)
    assert told.shapes == [Shape(32, 3, 1, 8, 8, rotary_dim=4)]


def test_what_is_kept_of_a_token():
    kept = CSA.cache_shape(32)
    assert (kept.kv_heads, kept.key_dim, kept.single) == (1, 8, True)
    assert [stream.width for stream in kept.streams] == [32, 32]  # C and Z of two sets, 8 wide; the indexer's


def test_the_sizes_of_deepseek_v4_unless_others_are_given():
    chooser = vt.EntryChooser(512, 64, 128, None, ())
    assert vt.CompressedSparse(4) == vt.CompressedSparse(4, None, 4, 128, None, choice=chooser)


def test_what_cannot_be():
    for wrong in ({"keep": 0}, {"heads": 0}, {"head_dim": 0}):
        with pytest.raises(BadInput, match="each must be 1 or more"):
            replace(CHOICE, **{"rope_dim": None, **wrong})
    with pytest.raises(BadInput, match="rope_dim=9 of heads of 8"):
        replace(CHOICE, rope_dim=9)
