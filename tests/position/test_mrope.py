"""M-RoPE: the worked numbers, transformers' rotations and position rule, RoPE where axes agree, and what comes next."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel, Qwen2VLRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb as qwen2_turn
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb as qwen3_turn

import vantage as vt
from tests.position.helpers import SHAPE, vectors
from vantage.cache.saved import Fingerprint, read_cache, save_cache
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput
from vantage.position import MultiAxisRope, Rope
from vantage.position.mrope import axis_of_pairs
from vantage.position.scaling import DynamicNTK
from vantage.spec.masks import Causal, SameSegment, Window
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

# two words, an image of 2 x 2 merged patches, one word
IMAGE = [(0, 0, 0), (1, 1, 1), (2, 2, 2), (2, 2, 3), (2, 3, 2), (2, 3, 3), (4, 4, 4)]
AXES = torch.tensor(IMAGE).T[:, None]


def test_the_pairs_of_each_axis():
    assert axis_of_pairs(64, (16, 24, 24), False) == [0] * 16 + [1] * 24 + [2] * 24
    interleaved = axis_of_pairs(64, (24, 20, 20), True)
    assert interleaved == [0, 1, 2] * 20 + [0] * 4
    assert axis_of_pairs(4, (), False) == [0, 0, 1, 2]
    assert axis_of_pairs(2, (), True) == [0, 0]
    assert MultiAxisRope((0, 2, 1)).build(SHAPE).axis_of_pair == [1, 1, 2]  # no time
    with pytest.raises(BadInput, match="are 3 pairs, and 4 pairs of a head turn"):
        axis_of_pairs(4, (1, 1, 1), False)
    with pytest.raises(BadInput, match="axis 1 has more pairs than turns"):
        axis_of_pairs(4, (1, 2, 1), True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
def test_equal_axes_are_rope_to_the_bit(interleaved, pairing):
    plain = Rope(pairing=pairing)
    many, rope = MultiAxisRope((1, 1, 1), interleaved, plain).build(SHAPE), plain.build(SHAPE)
    x, pos = vectors(2, 4, 7, 6), Positions.arange(2, 7)
    same = Positions.of_axes(pos.pos.expand(3, 2, 7))
    assert torch.equal(many.query(x, same), rope.query(x, pos))
    assert torch.equal(many.key(x, pos), rope.key(x, pos))  # and without axes it is RoPE


def test_qwen2_vl():
    d, sections = 16, [2, 3, 3]
    config = Qwen2VLTextConfig(
        hidden_size=4 * d,
        num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections},
    )
    q, k = vectors(1, 4, 7, d).float(), vectors(1, 2, 7, d, seed=1).float()
    cos, sin = Qwen2VLRotaryEmbedding(config)(q, AXES)
    want_q, want_k = qwen2_turn(q, k, cos, sin)
    ours = MultiAxisRope(sections=tuple(sections)).build(Shape(4 * d, 4, 2, d, d, d))
    pos = Positions.of_axes(AXES)
    torch.testing.assert_close(ours.query(q, pos), want_q, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.key(k, pos), want_k, atol=1e-5, rtol=1e-5)


def test_qwen3_vl():
    d, sections = 16, [4, 2, 2]
    config = Qwen3VLTextConfig(
        hidden_size=4 * d,
        num_attention_heads=4,
        head_dim=d,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections},
    )
    q, k = vectors(1, 4, 7, d).float(), vectors(1, 2, 7, d, seed=1).float()
    cos, sin = Qwen3VLTextRotaryEmbedding(config)(q, AXES)
    want_q, want_k = qwen3_turn(q, k, cos, sin)
    ours = MultiAxisRope(sections=tuple(sections), interleaved=True).build(Shape(4 * d, 4, 2, d, d, d))
    pos = Positions.of_axes(AXES)
    torch.testing.assert_close(ours.query(q, pos), want_q, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.key(k, pos), want_k, atol=1e-5, rtol=1e-5)


def test_where_transformers_puts_the_tokens_of_an_image():
    """And where it goes on: its delta is what ``ahead`` is, seen from the number of tokens."""
    theirs = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    theirs.get_vision_position_ids = partial(Qwen2VLModel.get_vision_position_ids, theirs)
    kinds = torch.tensor([[0, 0, 1, 1, 1, 1, 0]])
    axes, delta = Qwen2VLModel.get_rope_index(theirs, torch.zeros_like(kinds), kinds, torch.tensor([[1, 4, 4]]))
    assert torch.equal(axes, AXES)
    m = model()
    cache = m.new_cache(1)
    with torch.no_grad():
        m(TOKENS[:, :7], positions=Positions.of_axes(AXES), cache=cache)
    start = cache.next_positions
    assert start.order.tolist() == [7]
    assert torch.equal(start.ahead, delta[0])
    assert start.ahead.tolist() == [-2]


def test_a_rule_that_depends_on_the_length_reads_the_highest_axis():
    rope = Rope(scaling=DynamicNTK(2.0, 4))
    axes = torch.stack([torch.full((1, 3), 2), torch.tensor([[2, 3, 9]]), torch.full((1, 3), 2)])
    plain = Positions.of(torch.tensor([[2, 2, 9]]))
    many, one = MultiAxisRope((1, 1, 1), rope=rope).build(SHAPE), rope.build(SHAPE)
    x = vectors(1, 4, 3, 6)
    got, wanted = many.query(x, Positions.of_axes(axes)), one.query(x, plain)
    assert torch.equal(got[:, :, 0], wanted[:, :, 0])  # the same frequencies at position 2, though it is early
    assert not torch.equal(got[:, :, 0], one.query(x[:, :, :1], Positions.of(torch.tensor([[2]])))[:, :, 0])


def test_gradients():
    turn, x = MultiAxisRope((1, 1, 1)).build(SHAPE), vectors(1, 2, 7, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: turn.query(x, Positions.of_axes(AXES)), (x,))


# ---- in a model


def model(mask=Causal(), position=MultiAxisRope((2, 1, 1))) -> vt.Model:
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position=position, mask=mask & SameSegment())
    return sharpen(vt.build(spec).double())


TOKENS = torch.randint(19, (1, 11), generator=torch.Generator().manual_seed(0))
ONWARD = torch.cat([AXES, torch.arange(5, 9).expand(3, 1, 4)], 2)  # order 7 stands at 5
KINDS = ("contiguous", "paged", "ring", "quantised")


def close(got, wanted, kind):
    tolerance = 0.2 if kind == "quantised" else 1e-9  # rounded keys: what a wrong position gives is far beyond
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def parts_for(kind):
    m = model(Causal() & Window(6)) if kind == "ring" else model()
    return m, m.new_cache(1, kind=kind, draft=3)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [(7,), (4, 3), (1, 2, 4)])
def test_the_next_position_is_asked_for_not_counted(kind, cuts):
    m, cache = parts_for(kind)
    whole = m(TOKENS, positions=Positions.of_axes(ONWARD))
    at, parts = 0, []
    for n in cuts:
        pos = Positions.of_axes(AXES[:, :, at : at + n], starts=cache.next_positions.order)
        parts.append(m(TOKENS[:, at : at + n], positions=pos, cache=cache))
        at += n
    parts += [m(TOKENS[:, 7:9], cache=cache), m(TOKENS[:, 9:10], cache=cache)]
    other = cache.fork()
    other.reorder([0, 0])
    parts.append(m(TOKENS[:, 10:].expand(2, 1), cache=other)[:1])
    close(torch.cat(parts, 1), whole, kind)
    cache.crop(9)
    close(m(TOKENS[:, 9:], cache=cache), whole[:, 9:], kind)
    counted = Positions.of_axes(torch.cat([AXES, torch.arange(7, 11).expand(3, 1, 4)], 2))
    assert (m(TOKENS, positions=counted) - whole).abs().max() > 0.5  # what counting would have given


@torch.no_grad()
def test_a_row_goes_back_to_before_the_image():
    m, cache = parts_for("contiguous")
    m(TOKENS[:, :7], positions=Positions.of_axes(AXES), cache=cache)
    cache.crop(2)
    assert cache.next_positions.ahead.tolist() == [0]
    close(m(TOKENS[:, 2:5], cache=cache), m(TOKENS[:, :5])[:, 2:], "contiguous")
    cache.crop(0)
    close(m(TOKENS[:, :3], cache=cache), m(TOKENS[:, :3]), "contiguous")


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_unequal_length(kind, left):
    """A row of text beside one with an image; then both go on, and one of them waits for a step."""
    m = model(Causal() & Window(6)) if kind == "ring" else model()
    text = torch.arange(5).expand(3, 1, 5)
    padding = torch.full((3, 1, 2), -1)
    axes = torch.cat([AXES, torch.cat([padding, text] if left else [text, padding], 2)], 1)
    tokens = TOKENS.expand(2, -1).clone()
    tokens[1, 2 * left : 5 + 2 * left] = TOKENS[0, :5]
    cache = m.new_cache(2, kind=kind)
    out = m(tokens[:, :7], positions=Positions.of_axes(axes), cache=cache)
    whole = m(TOKENS, positions=Positions.of_axes(ONWARD))
    plain = m(torch.cat([TOKENS[:, :5], TOKENS[:, 7:]], 1))
    close(out[:1], whole[:, :7], kind)
    close(out[1:, 2 * left : 5 + 2 * left], plain[:, :5], kind)
    out = m(TOKENS[:, 7:8].expand(2, 1), cache=cache)
    close(out, torch.cat([whole[:, 7:8], plain[:, 5:6]]), kind)
    out = m(TOKENS[:, 8:9].expand(2, 1), mask=torch.tensor([[1], [0]]), cache=cache)
    close(out[:1], whole[:, 8:9], kind)
    out = m(torch.stack([TOKENS[0, 9:10], TOKENS[0, 8:9]]), cache=cache)
    close(out, torch.cat([whole[:, 9:10], plain[:, 6:7]]), kind)


@torch.no_grad()
def test_joined_split_and_saved(tmp_path):
    m = model()
    whole, plain = m(TOKENS, positions=Positions.of_axes(ONWARD)), m(TOKENS)
    image = m.new_cache(1, kind="paged")
    text = image.fresh()
    m(TOKENS[:, :7], positions=Positions.of_axes(AXES), cache=image)
    m(TOKENS[:, :7], cache=text)
    both = type(image).join([image, text])
    close(m(TOKENS[:, 7:8].expand(2, 1), cache=both), torch.cat([whole[:, 7:8], plain[:, 7:8]]), "paged")
    image, text = both.split()
    close(m(TOKENS[:, 8:9], cache=text), plain[:, 8:9], "paged")
    path, whose = tmp_path / "row.safetensors", Fingerprint("m", "0")
    save_cache(image, path, fingerprint=whose)
    again = read_cache(path, like=m.new_cache(1, kind="paged"), fingerprint=whose).cache
    close(m(TOKENS[:, 8:], cache=again), whole[:, 8:], "paged")


@torch.no_grad()
def test_a_model_that_was_loaded_turns_by_axes(tmp_path):
    """It is built without memory and then filled: which pair goes by which axis is no weight."""
    m = model()
    vt.save(m, tmp_path / "saved")
    again = vt.load(tmp_path / "saved", dtype=torch.float64)
    wanted = m(TOKENS, positions=Positions.of_axes(ONWARD))
    assert torch.equal(again(TOKENS, positions=Positions.of_axes(ONWARD)), wanted)


@torch.no_grad()
def test_a_pass_that_fails_leaves_the_next_position_where_it_was():
    m, cache = parts_for("contiguous")
    m(TOKENS[:, :2], cache=cache)
    pos = Positions.of_axes(AXES[:, :, 2:], starts=cache.next_positions.order)
    with pytest.raises(ZeroDivisionError), cache.step(pos):
        raise ZeroDivisionError
    assert cache.next_positions.ahead is None


@torch.no_grad()
def test_packed_documents():
    m = model()
    two = Positions.of_axes(torch.cat([AXES, AXES], 2), segment=torch.tensor([[0] * 7 + [7] * 7]))
    alone = m(TOKENS[:, :7], positions=Positions.of_axes(AXES))
    out = m(TOKENS[:, :7].repeat(1, 2), positions=two)
    close(out, torch.cat([alone, alone], 1), "contiguous")


@torch.no_grad()
def test_masks_go_by_order():
    """The patches of an image stand at equal times: the later ones are still not seen."""
    m = model()
    pos = Positions.of_axes(AXES)
    changed = TOKENS[:, :7].clone()
    changed[0, 5] = (changed[0, 5] + 1) % 19
    before, after = (m(t, positions=pos) for t in (TOKENS[:, :7], changed))
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3


@torch.no_grad()
def test_an_encoding_without_axes_reads_the_highest():
    m = model(position=Rope())
    highest = Positions.of(ONWARD.amax(0), order=torch.arange(11)[None])
    close(m(TOKENS, positions=Positions.of_axes(ONWARD)), m(TOKENS, positions=highest), "contiguous")


def test_what_cannot_be():
    turn = MultiAxisRope((1, 1, 1)).build(SHAPE)
    with pytest.raises(BadInput, match="positions with 2 axes for a rotation by 3: give 3"):
        turn.query(vectors(1, 4, 7, 6), Positions.of_axes(AXES[:2]))
    with pytest.raises(BadInput, match=r"axes have shape \(3, 3\): give \(axes, batch, tokens\)"):
        Positions.of_axes(torch.zeros(3, 3))
    with pytest.raises(BadInput, match="sections="):
        MultiAxisRope((-1, 2))
