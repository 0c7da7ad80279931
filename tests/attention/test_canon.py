"""Canon layers: the worked number, Inkling's convolution, documents, caches, gradients, costs, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.inkling.modeling_inkling import InklingShortConvolution

import vantage as vt
from tests.attention.helpers import F64, vectors
from tests.attention.model_checks import (
    TOKENS,
    check_cached,
    check_costs,
    check_generated,
    check_gradients,
    check_saved,
    check_taken_back,
    small_model,
)
from vantage.attention.canon import ResidualConvolutions
from vantage.errors import BadInput, Refused
from vantage.spec.positions import Positions

CANON = vt.Canon(4, 2, taps=3)
PLACES = {"both": CANON, "before": replace(CANON, projected=False), "projected": replace(CANON, before=False)}


class OneState:
    """The only layer's state, empty at first."""

    def __init__(self, taps: int, channels: int):
        self.held = torch.zeros(1, taps - 1, channels, dtype=F64)

    def wanted(self, pos: Positions) -> tuple[int, ...]:
        return (pos.shape[1] - 1,)

    def read(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.held,)

    def write(self, pos: Positions, columns: tuple[int, ...], states: list) -> None:
        ((self.held,),) = states


class Pass:
    """What the module reads of a pass."""

    def __init__(self, pos: Positions, states: OneState):
        self.pos, self.caches = pos, [type("Cache", (), {"states": states})()]


def convolved(x: torch.Tensor, weights: torch.Tensor, *cuts: int, pos: Positions | None = None) -> torch.Tensor:
    """x + its convolution, in pieces."""
    channels, taps = weights.shape
    part = ResidualConvolutions(vt.Canon(1, taps=taps, projected=False), channels, 0).double()
    with torch.no_grad():
        part.each[0].weight.copy_(weights)
    states, out, start = OneState(taps, channels), [], 0
    for end in (*cuts, x.shape[1]):
        where = Positions.arange(1, end - start, start) if pos is None else pos
        out.append(part(x[:, start:end], lambda x: x, Pass(where, states)))
        start = end
    return torch.cat(out, 1)


@torch.no_grad()
def test_the_worked_number():
    """w = (.1, .2, .3, .4), x = 1, 2, 3, 4 gives .4, 1.1, 2, 3; with x itself 1.4, 3.1, 5, 7. The next document begins
    with 5: 2 and 5 are 7."""
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=F64)
    x = torch.tensor([1.0, 2, 3, 4, 5], dtype=F64)[None, :, None]
    for cuts in ((), (2,), (1, 3)):
        assert convolved(x[:, :4], weights, *cuts).flatten().tolist() == pytest.approx([1.4, 3.1, 5.0, 7.0])
    packed = convolved(x, weights, pos=Positions.packed([[4, 1]]))
    assert packed.flatten().tolist() == pytest.approx([1.4, 3.1, 5.0, 7.0, 7.0])


@torch.no_grad()
def test_inklings_convolution():
    theirs = InklingShortConvolution(6, 4, 0, 0)
    x = vectors(1, 9, 6)
    got = convolved(x, theirs.conv1d.weight.double().squeeze(1), 5)
    torch.testing.assert_close(got, theirs(x.float()).double(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_layer_written_out():
    """The input with its convolution, the map, its outputs with theirs, and then attention as ever."""
    m = small_model(CANON, layers=1, position="none")
    attention = m.blocks[0].sublayers[0]
    given: list[torch.Tensor] = []
    mixed: list[torch.Tensor] = []
    attention.register_forward_pre_hook(lambda module, args: given.append(args[0]))
    attention.convolutions.register_forward_hook(lambda module, args, out: mixed.append(out))
    m(TOKENS[:1, :7])
    one, two = (each.weight for each in attention.convolutions.each)

    def plain(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        line = torch.cat([x.new_zeros(1, 2, x.shape[-1]), x], 1)
        return x + sum(line[:, i : i + 7] * weights[:, i] for i in range(3))

    torch.testing.assert_close(mixed[0], plain(attention.qkv(plain(given[0], one)), two))


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("place", PLACES)
def test_cached_and_taken_back(kind: str, place: str):
    m = small_model(PLACES[place])
    check_cached(m, kind)
    check_taken_back(m, kind, (7, 9))


def test_generated_and_saved(tmp_path):
    check_generated(small_model(CANON))
    check_saved(small_model(CANON), tmp_path)


@torch.no_grad()
def test_without_any_encoding_it_tells_neighbours_apart():
    """One layer of attention without position sees a bag of earlier tokens; with a convolution it does not."""
    swapped = TOKENS[:1, :6].clone()
    swapped[0, :2] = swapped[0, [1, 0]]
    for config, same in ((vt.GroupedQuery(4, 2), True), (CANON, False)):
        m = small_model(config, layers=1, position="none")
        last = [m(tokens)[0, -1] for tokens in (TOKENS[:1, :6], swapped)]
        assert torch.allclose(*last, atol=1e-9) is same


def test_what_it_says_of_itself():
    """What is convolved, where."""
    said = {name: config.describe(32)[1] for name, config in PLACES.items()}
    assert said == {
        "both": "convolution over 3 tokens on input and q, k and v",
        "before": "convolution over 3 tokens on input",
        "projected": "convolution over 3 tokens on q, k and v",
    }


def test_gradients():
    m = vt.build(vt.decoder(vocab=19, width=8, layers=1, attention=vt.Canon(2, taps=3))).double()
    check_gradients(m, "convolutions", count=2)


def test_costs_are_those_of_grouped_query_attention():
    check_costs(vt.decoder(vocab=19, width=32, layers=2, attention=CANON))


def test_what_cannot_be():
    with pytest.raises(BadInput, match="taps=1"):
        vt.Canon(2, taps=1)
    with pytest.raises(BadInput, match="convolve one of them"):
        vt.Canon(2, before=False, projected=False)
    with pytest.raises(Refused, match="self-attention only"):
        CANON.build_cross(32, None)
    with pytest.raises(Refused, match="its scores cannot be taken apart"):
        small_model(CANON).blocks[0].sublayers[0].queries_and_keys(torch.zeros(1, 3, 32, dtype=F64))
    spec = vt.decoder(vocab=19, width=32, layers=2, attention=CANON)
    with pytest.raises((BadInput, Refused)):
        vt.build(replace(spec, layers=(spec.layers[0], replace(spec.layers[1], source=0))))
