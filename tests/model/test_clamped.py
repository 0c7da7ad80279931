"""GPT-OSS's clamped SwiGLU."""

import pytest
import torch

from tests.attention.helpers import F64, check_gradients, sharpen, vectors
from vantage.errors import BadInput
from vantage.model.clamped import ClampedSwiGLU


def built(config, width=6):
    return sharpen(config.build(width).to(F64))


@pytest.mark.parametrize("limit", [7.0, 0.3])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_its_formula(limit, bias):
    part, x = built(ClampedSwiGLU(8, alpha=1.5, limit=limit, bias=bias)), vectors(2, 3, 6)
    b, c = (part.gate_up.bias, part.down.bias) if bias else (torch.zeros(16, dtype=F64), 0)
    gate = (x @ part.gate_up.weight[::2].T + b[::2]).clamp(max=limit)  # not from below: there it fades by itself
    up = (x @ part.gate_up.weight[1::2].T + b[1::2]).clamp(-limit, limit)
    wanted = ((up + 1) * gate / (1 + torch.exp(-1.5 * gate))) @ part.down.weight.T + c
    torch.testing.assert_close(part(x), wanted)
    assert (part.gate_up.bias is not None) == (part.down.bias is not None) == bias


def test_the_clamps_bite():
    part, x = built(ClampedSwiGLU(8, limit=0.3)), vectors(2, 3, 6)
    wide = ClampedSwiGLU(8, limit=1e9).build(6).to(F64)
    wide.load_state_dict(part.state_dict())
    assert not torch.allclose(part(x), wide(x))


def test_gradcheck():
    check_gradients(built(ClampedSwiGLU(3), 4), lambda m, x: m(x), vectors(2, 4))


@pytest.mark.parametrize("wrong", [{"hidden": 0}, {"hidden": 2, "limit": 0.0}])
def test_refused(wrong):
    with pytest.raises(BadInput):
        ClampedSwiGLU(**wrong)
