"""RMSNorm and LayerNorm."""

import pytest
import torch

from tests.attention.helpers import F64, check_gradients, sharpen, vectors
from vantage.model.norms import NORMS, LayerNorm, RMSNorm


def test_rms_norm_is_its_formula():
    norm, x = sharpen(RMSNorm(eps=0.1).build(5).to(F64)), vectors(2, 3, 5)
    wanted = x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), wanted)


def test_gemmas_weights_lie_around_0():
    norm, x = RMSNorm(offset=1.0).build(5).to(F64), vectors(3, 5)
    assert (norm.weight == 0).all()
    torch.testing.assert_close(norm(x), RMSNorm().build(5).to(F64)(x))
    sharpen(norm)
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + norm.weight)
    torch.testing.assert_close(norm(x), wanted)


@torch.no_grad()
def test_gemmas_1_is_added_in_float32():
    """1 + weight in bfloat16 would lose most of a small weight."""
    norm, x = RMSNorm(offset=1.0).build(5).bfloat16(), vectors(3, 5).bfloat16()
    norm.weight.copy_(torch.tensor([0.001, -0.003, 0.3, 0.0, 0.01]))
    wide = x.float()
    wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * (1 + norm.weight.float())
    assert norm(x).dtype == torch.bfloat16
    assert torch.equal(norm(x), wanted.bfloat16())


def test_layer_norm_is_its_formula():
    norm, x = sharpen(LayerNorm(eps=0.1).build(5).to(F64)), vectors(2, 3, 5)
    centred = x - x.mean(-1, keepdim=True)
    wanted = centred / (centred.square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), wanted)
    assert LayerNorm(bias=False).build(5).bias is None


def test_fresh_norms_change_the_size_alone():
    x = vectors(4, 5)
    assert (RMSNorm().build(5).weight == 1).all()
    torch.testing.assert_close(
        RMSNorm().build(5).to(F64)(x).square().mean(-1), torch.ones(4, dtype=F64), rtol=1e-4, atol=0
    )


def test_names_and_defaults():
    assert {"rms": RMSNorm(1e-6, 0.0), "layer": LayerNorm(1e-5, True)} == NORMS


@pytest.mark.parametrize("norm", [RMSNorm(), RMSNorm(offset=1.0), LayerNorm(), LayerNorm(bias=False)])
def test_gradcheck(norm):
    check_gradients(sharpen(norm.build(4).to(F64)), lambda m, x: m(x), vectors(2, 4))
