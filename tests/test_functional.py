"""The documents' formulas as plain functions."""

import pytest
import torch

from tests.position.helpers import F64, vectors
from vantage import functional as vf
from vantage import position
from vantage.errors import BadInput, LengthExceeded
from vantage.position import Rope
from vantage.position.scaling import DynamicNTK
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions


def test_they_are_the_parts_own():
    assert vf.alibi_bias is position.alibi_bias
    assert vf.sinusoid is position.sinusoid
    assert vf.t5_bucket is position.t5_bucket
    assert sorted(vf.__all__) == ["alibi_bias", "alibi_slopes", "apply_rope", "offset_matrix", "sinusoid", "t5_bucket"]


def test_P10_slopes_as_a_tensor():
    slopes = vf.alibi_slopes(4)
    assert slopes.tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert slopes.dtype == torch.float32
    assert vf.alibi_slopes(3, F64).dtype == F64


@pytest.mark.parametrize("rope", [Rope(), Rope(pairing="adjacent", share=0.5, base=50.0)])
def test_P8_apply_rope_is_the_part(rope):
    x, pos = vectors(2, 3, 4, 8), torch.tensor([5, 0, 7, 100])
    part = rope.build(Shape(24, 3, 3, 8, 8, 8))
    want = part.query(x, Positions.of(pos.expand(2, 4)))
    torch.testing.assert_close(vf.apply_rope(x, pos, rope), want)
    torch.testing.assert_close(vf.apply_rope(x[1, 2], pos, rope), want[1, 2])
    torch.testing.assert_close(vf.apply_rope(x[1], pos, rope), want[1])
    rows = torch.stack((pos, pos + 1))
    torch.testing.assert_close(vf.apply_rope(x, rows, rope), part.query(x, Positions.of(rows)))


def test_apply_rope_with_a_length():
    x, pos, rope = vectors(1, 1, 3, 8), torch.arange(3), Rope(scaling=DynamicNTK(2.0, 4))
    assert not torch.equal(vf.apply_rope(x, pos, rope, length=40), vf.apply_rope(x, pos, rope))
    with pytest.raises(LengthExceeded):
        vf.apply_rope(x, pos, rope, length=2)


@pytest.mark.parametrize(
    ("x", "pos"),
    [((3, 8), (4,)), ((2, 1, 3, 8), (3, 3)), ((2, 3, 8), (2, 3)), ((1, 2, 1, 3, 8), (1, 3)), ((3, 8), (1, 1, 3))],
)
def test_apply_rope_refuses_what_does_not_fit(x, pos):
    with pytest.raises(BadInput, match=r"do not fit: give positions \(T,\)"):
        vf.apply_rope(torch.zeros(x), torch.zeros(pos, dtype=torch.long))


def test_P10_alibi_bias_of_the_exercise():
    bias = vf.alibi_bias(8, 5)
    assert bias.shape == (8, 5, 5)
    assert bias[0, 4, 0].item() == -2.0
    assert bias[7, 4, 3].item() == -(2.0**-8)
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()
    assert torch.equal(bias, bias.transpose(1, 2))
