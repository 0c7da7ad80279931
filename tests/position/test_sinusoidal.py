"""Sinusoidal positions: P1 to P5."""

import math

import numpy as np
import pytest
import torch
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from tests.position.helpers import F64, SHAPE
from vantage import functional as vf
from vantage.errors import BadInput
from vantage.position import Sinusoidal, sinusoid
from vantage.spec.parts import Parts
from vantage.spec.positions import Positions


def encode(n: int, dim: int, **options) -> torch.Tensor:
    """What the real part adds to embeddings of zero."""
    return Sinusoidal(**options).build(SHAPE)(torch.zeros(1, n, dim, dtype=F64), Positions.arange(1, n))[0]


def test_P1_a_position_encoding_breaks_permutation_equivariance():
    x, swap = torch.randn(1, 6, 8, dtype=F64), torch.tensor([5, 1, 3, 0, 4, 2])
    part, pos = Sinusoidal().build(SHAPE), Positions.arange(1, 6)
    assert (part(x[:, swap], pos) - part(x, pos)[:, swap]).abs().max() > 0.1
    carried = Positions.of(swap)  # and holds where the positions travel with their tokens
    torch.testing.assert_close(part(x[:, swap], carried), part(x, pos)[:, swap])


def test_P2_worked_numbers():
    PE = encode(2, 4)
    assert PE[0].tolist() == [0, 1, 0, 1]
    assert PE[1].tolist() == pytest.approx([0.84147, 0.54030, 0.00999983, 0.99995], abs=5e-6)


def test_P2_erratum_the_cosine_has_the_exponent_of_its_sine():
    PE = encode(50, 16)
    torch.testing.assert_close(PE[:, 0::2] ** 2 + PE[:, 1::2] ** 2, torch.ones(50, 8, dtype=F64))
    t, i, d = 7, 3, 16
    assert PE[t, 2 * i + 1].item() == pytest.approx(math.cos(t / 10000 ** (2 * i / d)))
    assert abs(PE[t, 2 * i + 1].item() - math.cos(t / 10000 ** ((2 * i + 1) / d))) > 1e-3


@pytest.mark.parametrize("dim", [6, 7, 8])
def test_P2_both_layouts(dim):
    t = torch.arange(9)
    want = torch.tensor(
        [[(math.cos if j % 2 else math.sin)(n / 10000 ** ((j - j % 2) / dim)) for j in range(dim)] for n in range(9)]
    )
    torch.testing.assert_close(sinusoid(t, dim).float(), want)
    halves = torch.cat((want[:, 0::2], want[:, 1::2]), dim=1)
    torch.testing.assert_close(sinusoid(t, dim, layout="halves").float(), halves)
    torch.testing.assert_close(encode(9, dim, layout="halves").float(), halves)


@pytest.mark.parametrize("dim", [12, 13])
def test_halves_layout_is_marians(dim):
    marian = MarianSinusoidalPositionalEmbedding(20, dim)
    torch.testing.assert_close(sinusoid(torch.arange(20), dim, layout="halves").float(), marian.create_weight())


@pytest.mark.parametrize("k", [1, 5, 300])
def test_P3_an_offset_is_a_rotation_that_does_not_depend_on_where(k):
    PE, R = encode(40 + k, 8), vf.offset_matrix(k, 8)
    torch.testing.assert_close(PE[:40] @ R.T, PE[k : k + 40], atol=1e-12, rtol=0)
    torch.testing.assert_close(R @ R.T, torch.eye(8, dtype=F64))
    blocks = torch.block_diag(*torch.ones(4, 2, 2)).bool()
    assert (R[~blocks] == 0).all()
    assert R[0, 0] == pytest.approx(math.cos(k))
    assert R[0, 1] == pytest.approx(math.sin(k))


def test_P3_offset_matrix_of_another_base():
    t, R = torch.arange(10), vf.offset_matrix(3, 6, base=50.0)
    torch.testing.assert_close(sinusoid(t, 6, 50.0) @ R.T, sinusoid(t + 3, 6, 50.0))


def test_P4_dot_products():
    PE = encode(7, 4)
    assert (PE[0] @ PE[1]).item() == pytest.approx(1.54025, abs=5e-6)
    assert (PE[5] @ PE[6]).item() == pytest.approx(1.54025, abs=5e-6)
    assert (PE[0] @ PE[5]).item() == pytest.approx(1.28241, abs=5e-6)


def test_P4_erratum_similarity_is_not_monotone():
    PE = encode(7, 4)
    assert (PE[0] @ PE[6]).item() == pytest.approx(1.958, abs=5e-4)
    assert PE[0] @ PE[6] > PE[0] @ PE[1] > PE[0] @ PE[5]


def test_P5_positions_never_coincide():
    """Distance depends on the offset alone, so the nearest approach over a range is that to position 0."""
    PE = encode(100_000, 2)  # d = 2 has one frequency: the hardest case
    gap = (PE[1:] - PE[0]).norm(dim=1)
    assert gap.min() > 1e-5
    assert int(gap[:1000].argmin()) + 1 == 710  # 710 is nearly 226 half turns: 355/113
    assert gap[709].item() == pytest.approx(abs(710 - 226 * math.pi), rel=1e-6)
    assert (encode(100_000, 8)[1:] - encode(1, 8)[0]).norm(dim=1).min() > gap.min()


def test_P5_erratum_small_i_is_the_high_frequency():
    step = (encode(2, 16)[1] - encode(2, 16)[0]).view(8, 2).norm(dim=1)
    assert (step[:-1] > step[1:]).all()


def test_positions_are_read_not_counted():
    x, part = torch.zeros(2, 3, 8, dtype=F64), Sinusoidal().build(SHAPE)
    pos = Positions.of(torch.tensor([[5, 6, 7], [40, 2, -1]]))
    torch.testing.assert_close(part(x, pos), sinusoid(pos.pos, 8))
    assert part(x, pos).isfinite().all()
    half = Positions.of(torch.tensor([[0.5]]), order=torch.tensor([[0]]))
    assert part(x[:1, :1], half)[0, 0, 0].item() == pytest.approx(math.sin(0.5))


def test_far_positions_keep_their_precision():
    t = 1_000_003
    got = Sinusoidal().build(SHAPE)(torch.zeros(1, 1, 8), Positions.of(torch.tensor([[t]])))
    assert got.dtype == torch.float32
    want = [f(t / 10000 ** (2 * i / 8)) for i in range(4) for f in (np.sin, np.cos)]
    np.testing.assert_allclose(got[0, 0].numpy(), want, atol=1e-6)


def test_it_is_added_and_the_input_is_left_alone():  # T1's erratum: S2's snippet adds in place
    x = torch.randn(1, 4, 8)
    before = x.clone()
    out = Sinusoidal().build(SHAPE)(x, Positions.arange(1, 4))
    assert torch.equal(x, before)
    torch.testing.assert_close(out - x, sinusoid(torch.arange(4), 8)[None].float())


def test_dropout_acts_on_the_sum_in_training_only():
    torch.manual_seed(0)
    part = Sinusoidal(dropout=0.1).build(SHAPE)
    x, pos = torch.ones(1, 100, 64), Positions.arange(1, 100)
    kept = part.eval()(x, pos)
    out = part.train()(x, pos)
    gone = out == 0
    assert gone.float().mean().item() == pytest.approx(0.1, abs=0.02)
    torch.testing.assert_close(out[~gone], kept[~gone] / 0.9)


def test_half_precision_is_rounded_once():
    x = torch.zeros(1, 300, 8, dtype=torch.bfloat16)
    got = Sinusoidal().build(SHAPE)(x, Positions.arange(1, 300))
    assert torch.equal(got[0], sinusoid(torch.arange(300), 8).to(torch.bfloat16))


def test_acts_on_the_input_alone():
    config = Sinusoidal()
    assert config.parts(causal=True) == config.parts(causal=False) == Parts(inputs=(config,), unit=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "mixed"}, "layout='mixed': use one of 'interleaved', 'halves'"),
        ({"base": 0.0}, "base=0.0: use a positive number"),
        ({"base": float("inf")}, "base=inf: use a positive number"),
        ({"base": float("nan")}, "base=nan: use a positive number"),
        ({"dropout": 1.0}, "dropout=1.0: use a share"),
        ({"dropout": -0.1}, "dropout=-0.1"),
    ],
)
def test_bad_input(options, says):
    Sinusoidal(base=0.5, dropout=0.99)
    with pytest.raises(BadInput, match=says):
        Sinusoidal(**options)
    if "layout" in options:
        with pytest.raises(BadInput, match=says):
            sinusoid(torch.arange(2), 4, **options)
