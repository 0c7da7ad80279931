"""ALiBi: P10, against bloom and mpt in transformers."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from tests.position.helpers import F64, SHAPE, bias_of, built, only_bias, pointwise_of
from vantage.errors import BadInput
from vantage.position import Alibi, alibi_bias, alibi_slopes
from vantage.spec.parts import BiasInputs, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Fit, parameters


def of(heads: int) -> Shape:
    return Shape(width=8 * heads, heads=heads, kv_heads=1, key_dim=8, value_dim=8, rotary_dim=8)


def test_P10_slopes_of_8_heads():
    assert alibi_slopes(8) == tuple(2.0**-k for k in range(1, 9))


def test_P10_erratum_the_series_of_S3_is_the_papers_for_8_heads_only():
    for heads in (1, 2, 4, 8, 16, 32):
        assert alibi_slopes(heads) == pytest.approx([2.0 ** (-8 * k / heads) for k in range(1, heads + 1)])
        s3 = [2.0**-k for k in range(1, heads + 1)]
        assert (list(alibi_slopes(heads)) == s3) is (heads == 8)


def test_P10_heads_that_are_no_power_of_two():
    assert alibi_slopes(3) == (2.0**-4, 2.0**-8, 2.0**-2)
    assert alibi_slopes(12) == pytest.approx([2.0**-k for k in range(1, 9)] + [2.0 ** -(k + 0.5) for k in range(4)])


def test_P10_bias_tensor():
    bias = alibi_bias(2, 3)
    assert bias.shape == (2, 3, 3)
    assert bias.dtype == torch.float32
    assert bias[0].tolist() == [[0, -1 / 16, -2 / 16], [-1 / 16, 0, -1 / 16], [-2 / 16, -1 / 16, 0]]
    assert bias[1].tolist() == [[0, -1 / 256, -2 / 256], [-1 / 256, 0, -1 / 256], [-2 / 256, -1 / 256, 0]]
    assert alibi_bias(2, 3, torch.float64).dtype == F64


@pytest.mark.parametrize("heads", [*range(1, 18), 24, 32, 71])
def test_slopes_are_blooms_and_mpts(heads):
    bloom = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), bloom)
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), mpt)


def test_the_part_is_mpts_bias():
    part = built(only_bias(Alibi().parts(causal=True)), of(6))
    got = bias_of(part, Positions.arange(2, 1, start=8), Positions.arange(2, 9), shape=of(6))
    torch.testing.assert_close(got[:, :, 0], build_mpt_alibi_tensor(6, 9)[:, 0].double().expand(2, -1, -1))


def test_own_slopes():
    part = built(Alibi(slopes=[1.0, 0.5, 0.0, 3.0]))  # pyright: ignore[reportArgumentType]
    got = bias_of(part, Positions.of(torch.tensor([[2]])), Positions.of(torch.tensor([[0, 7]])))
    assert got[0, :, 0].tolist() == [[-2, -5], [-1, -2.5], [0, 0], [-6, -15]]
    assert hash(Alibi(slopes=[1.0])) == hash(Alibi(slopes=(1.0,)))  # pyright: ignore[reportArgumentType]


def test_slopes_as_they_are_written_into_a_form():
    read, fit = parameters(Alibi)["slopes"].read, Fit(length=64, rotary_dim=8)
    assert read is not None
    assert read("16, 0.25,0", fit) == (16.0, 0.25, 0.0)
    assert read(" , ", fit) is None  # the paper's
    for text in ("16.5", "-0.5, 1", "nan", "half"):
        with pytest.raises(BadInput, match=f"slopes are '{text}'"):
            read(text, fit)


def test_some_of_the_heads_keep_their_slopes():
    assert Alibi().of_heads(2, 3, heads=8) == Alibi((2.0**-3, 2.0**-4, 2.0**-5))
    assert Alibi((4.0, 3.0, 2.0, 1.0)).of_heads(1, 2, heads=4) == Alibi((3.0, 2.0))


def test_slopes_are_not_rounded_with_the_model():
    part = Alibi().build(of(12)).to(torch.bfloat16)
    q, k = torch.zeros(1, 12, 1, 8, dtype=torch.bfloat16), torch.zeros(1, 1, 3, 8, dtype=torch.bfloat16)
    q_pos, k_pos = Positions.arange(1, 1, start=1000), Positions.arange(1, 3)
    bias = part.at(BiasInputs(q, q, k, q_pos, k_pos, 1.0))
    assert bias.slopes.dtype == torch.float32
    assert bias.slopes.tolist() == pytest.approx(alibi_slopes(12), rel=1e-7)


def test_all_layers_share_one_bias():
    pos = Positions.arange(1, 3)
    one, two = Alibi().build(SHAPE), Alibi().build(SHAPE)
    assert pointwise_of(one, pos, pos) is pointwise_of(two, pos, pos)
    other = Alibi(slopes=(1.0, 2.0, 3.0, 4.0)).build(SHAPE)
    assert pointwise_of(other, pos, pos) is not pointwise_of(one, pos, pos)
    q = torch.zeros(1, 4, 3, 6)
    assert one.at(BiasInputs(q, q, q, pos, pos, 1.0)).slopes.dtype == torch.float32  # and another for another dtype
    assert pointwise_of(one, pos, pos).slopes.dtype == F64


def test_bad_input():
    with pytest.raises(BadInput, match="3 ALiBi slopes for 4 heads: give one a head"):
        Alibi(slopes=(1.0, 2.0, 3.0)).build(SHAPE)
    with pytest.raises(BadInput, match="0 heads"):
        alibi_slopes(0)
