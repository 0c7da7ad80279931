"""FIRE against the authors' code."""

import pytest
import torch

from tests.position.helpers import F64, SHAPE, bias_of, built, check_gradients, only_bias
from vantage.errors import BadInput
from vantage.position import Fire
from vantage.spec.parts import BiasInputs
from vantage.spec.positions import Positions

HERE, THERE = torch.tensor([[0, 3, 40, 700], [5, 6, -1, 7]]), torch.tensor([[0, 2, 41, 39, 650], [6, 5, 4, -1, -1]])


def authors(part, i, j, *, bidirectional: bool, init_L: float):
    """Appendix of the paper, with positions given; the bidirectional form takes the later of the two."""
    i, j = i[:, None].to(F64), j[None].to(F64)
    threshold = torch.abs(part.L_multiple * init_L)
    pos_normalizer = torch.max(i, threshold)
    if bidirectional:
        pos_normalizer = torch.max(pos_normalizer, j)
    rel_distance = torch.log(torch.abs(part.c * (i - j)) + 1)
    pos_normalizer = torch.log(torch.abs(part.c * pos_normalizer) + 1) + 1e-6
    normalized = rel_distance / pos_normalizer
    hidden = torch.relu(normalized[..., None] * part.f[0].weight[:, 0] + part.f[0].bias)
    return (hidden @ part.f[2].weight.T + part.f[2].bias).permute(2, 0, 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("init_L", [30.0, 512.0])
@pytest.mark.parametrize(("c", "multiple"), [(0.3, 1.2), (-0.3, 1.2), (0.3, -1.2)])
def test_bias_is_the_authors(causal, init_L, c, multiple):
    part = built(only_bias(Fire(init_L=init_L).parts(causal=causal)))
    with torch.no_grad():
        part.c.fill_(c)
        part.L_multiple.fill_(multiple)
    got = bias_of(part, Positions.of(HERE), Positions.of(THERE))
    for b in range(2):
        want = authors(part, HERE[b], THERE[b], bidirectional=not causal, init_L=init_L)
        torch.testing.assert_close(got[b], want, rtol=1e-9, atol=1e-9)
    assert got.isfinite().all()


def test_a_distance_is_a_share_of_the_context_once_past_the_threshold():
    """Far beyond L the same share of the context gives nearly the same bias, whatever the length."""
    part = built(only_bias(Fire(init_L=1.0).parts(causal=True)))
    with torch.no_grad():
        part.c.fill_(1e-6)  # ψ is linear here, so shares are exact
    near = bias_of(part, Positions.arange(1, 1, start=100), Positions.of(torch.tensor([[50]])))
    far = bias_of(part, Positions.arange(1, 1, start=1000), Positions.of(torch.tensor([[500]])))
    torch.testing.assert_close(near, far, rtol=1e-2, atol=1e-2)


def test_direction_follows_the_attention_unless_said():
    assert only_bias(Fire().parts(causal=True)).bidirectional is False
    assert only_bias(Fire().parts(causal=False)).bidirectional is True
    assert only_bias(Fire(bidirectional=True).parts(causal=True)).bidirectional is True
    assert only_bias(Fire(bidirectional=False).parts(causal=False)).bidirectional is False
    with pytest.raises(BadInput, match="FIRE does not know if attention is bidirectional"):
        Fire().build(SHAPE)


def test_how_it_starts():
    part = Fire(hidden=7, init_c=0.3, init_L=99.0, bidirectional=False).build(SHAPE)
    assert part.c.item() == pytest.approx(0.3)
    assert part.L_multiple.item() == 1.0
    assert part.f[0].weight.shape == (7, 1)
    assert part.f[2].weight.shape == (4, 7)
    assert Fire().shared is False


def test_equal_rows_are_worked_out_once():
    part, pos = built(Fire(bidirectional=False)), Positions.arange(3, 4)
    q = torch.zeros(3, 4, 4, 6, dtype=F64)
    assert part.at(BiasInputs(q, q, q, pos, pos, 1.0)).value.shape == (1, 4, 4, 4)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_gradients(bidirectional):
    part = built(Fire(hidden=3, init_L=20.0, bidirectional=bidirectional))
    with torch.no_grad():
        part.L_multiple.fill_(1.2)
        part.c.fill_(0.2)
    check_gradients(part, lambda: bias_of(part, Positions.of(HERE[:1]), Positions.of(THERE[:1])))


def test_half_precision_keeps_far_positions_apart():
    part = built(Fire(init_c=0.1, bidirectional=False), dtype=torch.bfloat16)
    with torch.no_grad():
        part.c.fill_(0.1)
        part.L_multiple.fill_(1.0)
    q, pos, k_pos = (
        torch.zeros(1, 4, 1, 6).bfloat16(),
        Positions.arange(1, 1, start=1000),
        Positions.of(torch.arange(3)),
    )
    half = part.at(BiasInputs(q, q, q, pos, k_pos, 1.0)).value
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), bias_of(part.double(), pos, k_pos), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"hidden": 0}, "hidden=0"), ({"init_c": 0.0}, "init_c=0.0: use a positive"), ({"init_L": 0.0}, "init_L=0.0")],
)
def test_bad_input(options, says):
    Fire(hidden=1, init_c=0.5, init_L=0.5)
    with pytest.raises(BadInput, match=says):
        Fire(**options)
