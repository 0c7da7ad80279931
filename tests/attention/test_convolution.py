"""Short convolutions: the worked number, torch's Conv1d, LFM2's layer, padding, documents and pieces."""

from __future__ import annotations

import pytest
import torch
from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

import vantage as vt
from tests.attention.helpers import F64, context, vectors
from vantage.attention.convolution import ShortConvolution
from vantage.attention.gated_convolution import GatedConvolution
from vantage.cache.build import no_caches
from vantage.errors import BadInput
from vantage.spec.positions import Positions


def conv(channels: int, taps: int) -> ShortConvolution:
    torch.manual_seed(0)
    return ShortConvolution(channels, taps).double()


def nothing(B: int, n: int, C: int) -> torch.Tensor:
    return torch.zeros(B, n - 1, C, dtype=F64)


def test_the_worked_number():
    """w = (.1, .2, .3, .4), x = 1, 2, 3, 4: .4, 1.1, 2, 3; the next document begins with 5: 2.0."""
    one = conv(1, 4)
    with torch.no_grad():
        one.weight.copy_(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    x = torch.tensor([1.0, 2, 3, 4, 5], dtype=F64)[None, :, None]
    out, _ = one(x, nothing(1, 4, 1), Positions.packed([[4, 1]]), ())
    torch.testing.assert_close(out[0, :, 0], torch.tensor([0.4, 1.1, 2, 3, 2.0], dtype=F64))


def test_torchs_conv1d():
    one, x = conv(6, 3), vectors(2, 9, 6)
    theirs = torch.nn.functional.conv1d(x.transpose(1, 2), one.weight[:, None], padding=2, groups=6)[..., :9]
    out, _ = one(x, nothing(2, 3, 6), Positions.arange(2, 9), ())
    torch.testing.assert_close(out, theirs.transpose(1, 2))


@pytest.mark.parametrize("cuts", [(3, 6), (1, 1, 7), (2, 2, 2, 3)])
def test_in_pieces_it_is_the_same(cuts):
    one, x = conv(5, 4), vectors(2, 9, 5)
    whole, _ = one(x, nothing(2, 4, 5), Positions.arange(2, 9), ())
    state, at, parts = nothing(2, 4, 5), 0, []
    for n in cuts:
        part, states = one(x[:, at : at + n], state, Positions.arange(2, n, at), (n - 1,))
        state, at = states[0], at + n
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("pad", ["left", "right"])
def test_padding_is_no_token(pad):
    one = conv(3, 3)
    rows = [vectors(1, n, 3, seed=n) for n in (5, 2)]
    pos = Positions.rows([5, 2], pad=pad)
    x = torch.full((2, 5, 3), 7.0, dtype=F64)
    for b, row in enumerate(rows):
        x[b, pos.filled[b]] = row[0]
    out, states = one(x, nothing(2, 3, 3), pos, (4,))
    for b, row in enumerate(rows):
        alone, state = one(row, nothing(1, 3, 3), Positions.arange(1, row.shape[1]), (row.shape[1] - 1,))
        torch.testing.assert_close(out[b, pos.filled[b]], alone[0])
        torch.testing.assert_close(states[0][b], state[0][0])


def test_lfm2s_layer():
    config = Lfm2Config(hidden_size=12, conv_L_cache=3, conv_bias=True, num_hidden_layers=1, layer_types=["conv"])
    theirs = Lfm2ShortConv(config, 0).double()
    spec = vt.decoder(vocab=9, width=12, layers=1, attention=GatedConvolution(3, bias=True), position="none")
    model = vt.build(spec).double()
    ours = model.blocks[0].sublayers[0]
    with torch.no_grad():
        ours.maps.weight.copy_(theirs.in_proj.weight)
        ours.maps.bias.copy_(theirs.in_proj.bias)
        ours.conv.weight.copy_(theirs.conv.weight[:, 0])
        ours.conv.bias.copy_(theirs.conv.bias)
        ours.out.weight.copy_(theirs.out_proj.weight)
        ours.out.bias.copy_(theirs.out_proj.bias)
        x = vectors(2, 8, 12)
        got = ours(x, context(Positions.arange(2, 8), caches=no_caches(model.spec, None, model.dtype)))
        torch.testing.assert_close(got, theirs(x))


def test_without_positions_it_tells_neighbours_apart():
    """Attention without positions does not see in which order the tokens before stand; a convolution does."""
    swapped = torch.tensor([[1, 2, 3], [2, 1, 3]])
    plain = vt.build(vt.decoder(vocab=9, width=8, layers=1, heads=2, position="none"))(swapped)[:, -1]
    torch.testing.assert_close(plain[0], plain[1])
    mixed = vt.build(vt.decoder(vocab=9, width=8, layers=1, attention=GatedConvolution(), position="none"))
    got = mixed(swapped)[:, -1]
    assert (got[0] - got[1]).abs().max() > 1e-6


def test_gradients():
    one, x = conv(3, 3), vectors(1, 4, 3).requires_grad_()
    pos = Positions.of(torch.tensor([[0, -1, 1, 2]]))
    assert torch.autograd.gradcheck(lambda x: one(x, nothing(1, 3, 3), pos, ())[0], x)


def test_one_tap_sees_the_token_itself():
    one, x = conv(3, 1), vectors(1, 4, 3)
    out, (state,) = one(x, nothing(1, 1, 3), Positions.arange(1, 4), (3,))
    torch.testing.assert_close(out, x * one.weight[:, 0])
    assert state.shape == (1, 0, 3)


def test_fresh_weights():
    """Of four taps ½ each: what comes out is as large as what went in."""
    assert float(conv(1000, 4).weight.detach().std()) == pytest.approx(0.5, rel=0.05)


def test_what_cannot_be():
    with pytest.raises(BadInput, match="taps=0"):
        vt.build(
            vt.decoder(vocab=9, width=8, layers=1, attention=vt.KimiDelta(2, vt.RMSNorm(), taps=0), position="none")
        )
    with pytest.raises(BadInput, match="taps=1"):
        GatedConvolution(1)
