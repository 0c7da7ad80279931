"""Axial RoPE: the worked layout, the rotations of Qwen2-VL's tower, Gemma 4's and NeoMME's, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.models.gemma4.modeling_gemma4 import apply_multidimensional_rope
from transformers.models.neomme.modeling_neomme import NeoMMERotaryEmbedding
from transformers.models.neomme.modeling_neomme import apply_rotary_pos_emb as neomme_turn
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionRotaryEmbedding, apply_rotary_pos_emb_vision

import vantage as vt
from tests.position.helpers import vectors
from vantage.errors import BadInput
from vantage.position import AxialRope, MultiAxisRope, Rope
from vantage.position.angles import frequencies
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

D = 16
SHAPE = Shape(width=4 * D, heads=4, kv_heads=4, key_dim=D, value_dim=D, rotary_dim=D)
# 2 x 3 patches, row by row
ROWS, COLUMNS = torch.arange(2).repeat_interleave(3), torch.arange(3).repeat(2)
AXES = torch.stack([ROWS, COLUMNS])[:, None]
Q, K = vectors(1, 4, 6, D).float(), vectors(1, 4, 6, D, seed=1).float()


def test_a_pair_turns_by_its_row_or_its_column():
    turn, x = AxialRope(base=100.0).build(Shape(8, 1, 1, 8, 8, 8)), torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    x[..., 1] = x[..., 2] = 1.0  # pair 1 is a row's, pair 2 a column's: frequencies 1, 0.1, 1, 0.1
    out = turn.query(x, Positions.of_axes(torch.tensor([3, 5])[:, None, None]))[0, 0, 0]
    wanted = torch.zeros(8, dtype=torch.float64)
    wanted[1], wanted[5] = torch.tensor(0.3).double().cos(), torch.tensor(0.3).double().sin()
    wanted[2], wanted[6] = torch.tensor(5.0).double().cos(), torch.tensor(5.0).double().sin()
    torch.testing.assert_close(out, wanted, atol=1e-7, rtol=0)


def test_qwen2_vl():
    config = Qwen2VLVisionConfig(embed_dim=4 * D, num_heads=4)
    cos, sin = Qwen2VLVisionRotaryEmbedding(config)(Q, AXES[:, 0].T)
    want_q, want_k = apply_rotary_pos_emb_vision(Q[0].transpose(0, 1), K[0].transpose(0, 1), cos, sin)
    ours, pos = AxialRope().build(SHAPE), Positions.of_axes(AXES)
    torch.testing.assert_close(ours.query(Q, pos)[0].transpose(0, 1), want_q, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.key(K, pos)[0].transpose(0, 1), want_k, atol=1e-5, rtol=1e-5)


def test_gemma4_splits_the_head():
    angles = [torch.outer(axis, frequencies(D // 2, 100.0)) for axis in AXES[:, 0].double()]
    angle = torch.cat([angles[0], angles[0], angles[1], angles[1]], -1)[None].float()
    theirs = apply_multidimensional_rope(Q.transpose(1, 2), angle.cos(), angle.sin(), AXES.permute(1, 2, 0))
    ours = AxialRope(100.0, "split").build(SHAPE).query(Q, Positions.of_axes(AXES))
    torch.testing.assert_close(ours.transpose(1, 2), theirs, atol=1e-5, rtol=1e-5)


def test_what_neomme_calls_axial_is_m_rope_in_turns():
    config = SimpleNamespace(
        layer_types=["full"],
        rope_parameters={"full": {"rope_type": "default", "rope_theta": 100.0}},
        head_dim=D,
        max_position_embeddings=64,
    )
    cos, sin = NeoMMERotaryEmbedding(config)(Q, AXES, layer_type="full")
    want_q, _ = neomme_turn(Q, K, cos, sin)
    ours = MultiAxisRope((D // 4, D // 4), True, Rope(100.0)).build(SHAPE)
    torch.testing.assert_close(ours.query(Q, Positions.of_axes(AXES)), want_q, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["whole", "split"])
def test_scores_go_by_the_difference_of_rows_and_columns(layout):
    turn, q, k = AxialRope(layout=layout).build(SHAPE), vectors(1, 4, 6, D), vectors(1, 4, 6, D, seed=1)

    def scores(axes):
        pos = Positions.of_axes(axes)
        return turn.query(q, pos) @ turn.key(k, pos).mT

    moved = AXES + torch.tensor([7, 40])[:, None, None]
    torch.testing.assert_close(scores(AXES), scores(moved), atol=1e-9, rtol=0)
    assert (scores(AXES) - scores(AXES.flip(0))).abs().max() > 0.1  # and not by which axis is which


@pytest.mark.parametrize("layout", ["whole", "split"])
def test_in_text_both_axes_are_the_position(layout):
    turn, x, pos = AxialRope(layout=layout).build(SHAPE), vectors(2, 4, 6, D), Positions.arange(2, 6)
    assert torch.equal(turn.query(x, pos), turn.query(x, Positions.of_axes(pos.pos.expand(2, 2, 6))))


@pytest.mark.parametrize("layout", ["whole", "split"])
def test_bands(layout):
    """The band of a dimension turns as its number says: by a row, by a column."""
    turn = AxialRope(100.0, layout).build(SHAPE)
    bands = turn.bands(Positions.arange(1, 2))
    torch.testing.assert_close(bands.frequency, frequencies(8, 100.0).repeat(2))
    for axis in range(2):
        pos = Positions.of_axes(torch.eye(2, dtype=torch.long)[axis][:, None, None])
        still = turn.query(torch.ones(1, 1, 1, D, dtype=torch.float64), pos)[0, 0, 0] == 1.0
        assert torch.equal(~still, bands.of // 4 == axis)


def test_gradients():
    turn, x = AxialRope(layout="split").build(SHAPE), vectors(1, 1, 3, D).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: turn.query(x, Positions.of_axes(AXES[..., :3])), (x,))


def test_refused():
    with pytest.raises(BadInput, match="layout='turns': use one of whole, split"):
        AxialRope(layout="turns")
    for base in (0.0, float("inf"), float("nan")):
        with pytest.raises(BadInput, match=f"base={base}"):
            AxialRope(base=base)
    assert AxialRope(base=1.0).base == 1.0
    with pytest.raises(BadInput, match="a head has 6: give a multiple of 4"):
        vt.build(vt.decoder(vocab=5, width=12, layers=1, heads=2, position="axial"))
    with pytest.raises(BadInput, match="positions with 3 axes for axial RoPE: give 2"):
        AxialRope().build(SHAPE).query(Q, Positions.of_axes(torch.zeros(3, 1, 6, dtype=torch.long)))
