"""LeRoPE: RoPE at first, transformers' tables, frequencies that are weights, and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.mistral_large4.configuration_mistral_large4 import MistralLarge4TextConfig
from transformers.models.mistral_large4.modeling_mistral_large4 import MistralLarge4TextRotaryEmbedding

import vantage as vt
from tests.position.helpers import F64, SHAPE, vectors
from vantage.position import LeRope, Rope
from vantage.position.rope import rotate_by
from vantage.position.scaling import YaRN
from vantage.spec.positions import Positions

ROPES = [Rope(), Rope(pairing="adjacent", share=0.7), Rope(scaling=YaRN(4.0, 8))]


@pytest.mark.parametrize("rope", ROPES, ids=str)
def test_at_first_it_is_rope_to_the_bit(rope):
    x, pos = vectors(2, 4, 5, 6), Positions.rows([5, 3], [40, 0])
    learned, plain = LeRope(rope).build(SHAPE).double(), rope.build(SHAPE)
    assert torch.equal(learned.query(x, pos), plain.query(x, pos))
    assert torch.equal(learned.key(x, pos), plain.key(x, pos))


def test_the_worked_number():
    """α = ln 2 on one pair is RoPE with that frequency doubled: the pair is where it would be at twice the position."""
    part = LeRope().build(SHAPE).double()
    with torch.no_grad():
        part.alpha[1] = math.log(2)
    x, pos = vectors(1, 4, 3, 6), Positions.arange(1, 3, 5)
    twice = Positions.of(2 * pos.pos, order=pos.order)
    turned, here, there = part.query(x, pos), *(Rope().build(SHAPE).query(x, p) for p in (pos, twice))
    torch.testing.assert_close(turned[..., [1, 4]], there[..., [1, 4]])
    torch.testing.assert_close(turned[..., [0, 2, 3, 5]], here[..., [0, 2, 3, 5]])
    bands = part.bands(pos)
    torch.testing.assert_close(bands.frequency, Rope().build(SHAPE).bands(pos).frequency * torch.tensor([1.0, 2, 1]))


def test_transformers_has_the_same():
    config = MistralLarge4TextConfig(
        hidden_size=32,
        num_attention_heads=4,
        head_dim=8,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=128,
    )
    theirs = MistralLarge4TextRotaryEmbedding(config)
    alpha = 0.3 * torch.randn(theirs.alpha.shape, generator=torch.Generator().manual_seed(0))
    theirs.alpha.copy_(alpha)
    pos, dim = Positions.rows([4, 4], [0, 70]), 2 * len(alpha)
    cos, sin = (side[:, None] for side in theirs(torch.zeros(1), pos.pos))
    shape = vt.GroupedQuery(4, head_dim=dim).shape(32)
    part, x = LeRope().build(shape), vectors(2, 4, 4, dim, dtype=torch.float32)
    with torch.no_grad():
        part.alpha.copy_(alpha)
    signed = torch.cat((-sin[..., : dim // 2], sin[..., dim // 2 :]), -1)
    torch.testing.assert_close(part.query(x, pos), rotate_by(x, cos, signed, "halves"), rtol=1e-4, atol=1e-4)


def test_the_frequencies_are_weights():
    """Changed between two passes over the same positions, they are read anew, and each pass has its own gradient."""
    part, x, pos = LeRope().build(SHAPE).double(), vectors(1, 4, 3, 6), Positions.arange(1, 3, 2)
    before = part.query(x, pos)
    before.sum().backward()
    with torch.no_grad():
        part.alpha.add_(0.5)
    after = part.query(x, pos)
    after.sum().backward()
    assert (after - before).abs().max() > 1e-3
    assert part.alpha.grad is not None


@pytest.mark.parametrize("rope", ROPES, ids=str)
def test_gradients(rope):
    part, x = LeRope(rope).build(SHAPE).double(), vectors(1, 4, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, _: part.query(x, Positions.arange(1, 3, 2)), (x, part.alpha))


@torch.no_grad()
def test_a_model_in_steps():
    model = vt.build(vt.decoder(vocab=19, width=16, layers=2, heads=2, position="lerope"), seed=0).double().eval()
    (alpha,) = {p for name, p in model.named_parameters() if name.endswith("alpha")}  # one for all layers
    alpha.copy_(torch.randn(len(alpha), generator=torch.Generator().manual_seed(0)))
    tokens, cache = torch.arange(9)[None], model.new_cache(1)
    steps = torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(9)], 1)
    torch.testing.assert_close(steps, model(tokens))
    assert alpha.dtype == F64
