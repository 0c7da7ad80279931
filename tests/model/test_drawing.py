"""Weights that are drawn one parameter at a time: the bits of ``build``, and never the whole model in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import vantage as vt
from tests.kernels.peak_memory import PeakMemory
from tests.parallel.tensor_cells import spec_of
from vantage.conformance.factors import attentions, encodings
from vantage.errors import Refused
from vantage.model import build, draw_weights
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Parts, Shape

CELLS = [
    *((encoding, "grouped", "gated") for encoding in encodings()),
    *(("rope", attention, "plain") for attention in attentions()),
    ("rope", "latent", "experts"),
]


def drawn(spec: ModelSpec, seed: int = 3) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}

    def keep(name: str, whole: Tensor) -> None:
        assert name not in kept
        kept[name] = whole.clone()

    draw_weights(spec, seed, keep)
    return kept


def equal(spec: ModelSpec) -> None:
    wanted, found = dict(build(spec, seed=3).named_parameters()), drawn(spec)
    assert found.keys() == wanted.keys()
    differing = [name for name, p in wanted.items() if not torch.equal(p.detach(), found[name])]
    assert not differing, differing


@pytest.mark.sampled
def test_every_part_has_the_weights_that_build_draws() -> None:
    for cell in CELLS:
        equal(spec_of(cell))


@pytest.mark.parametrize(
    "spec",
    [
        lambda: vt.decoder(vocab=9, width=16, layers=2, heads=2, tied=True, position="t5"),
        lambda: vt.decoder(vocab=9, width=16, layers=2, heads=2, position="learned", max_length=8),
        lambda: vt.encoder(vocab=9, width=16, layers=2, heads=2),
        lambda: vt.encoder_decoder(vocab=9, width=16, layers=2, heads=2, tied=True, shared=True),
    ],
)
def test_tied_and_shared_weights_are_handed_over_once(spec: Callable[[], ModelSpec]) -> None:
    equal(spec())


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    drawn(vt.decoder(vocab=9, width=16, layers=1, heads=2))
    assert torch.equal(before, torch.get_rng_state())


# ---- memory


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("position", ["rope", "t5", "path", "fope"])
def test_one_parameter_is_held_at_a_time(position: str, tied: bool) -> None:
    spec = vt.decoder(vocab=40, width=64, layers=8, heads=4, position=position, tied=tied)
    shapes = {name: p.nbytes for name, p in build(spec).named_parameters()}
    with PeakMemory() as memory:
        draw_weights(spec, 0, lambda name, whole: None)
    # a map and its bias are drawn together; PaTH's constructor works on several small maps
    assert memory.peak < 1.2 * max(shapes.values()), (memory.peak, max(shapes.values()))
    assert sum(shapes.values()) > 10 * memory.peak


# ---- parts of one's own


class LateDraws(nn.Module):
    """Draws all its weights after the last was registered, one of them from another, and one in part."""

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.empty(heads, width)), nn.Parameter(torch.empty(width))
        self.c, self.d = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.empty(heads, width))
        nn.init.normal_(self.b)
        nn.init.normal_(self.a)
        with torch.no_grad():
            self.d.copy_(self.a * 2)
            self.c[0] = 0.0
            self.b.data.mul_(0.5)
        self.a.data = self.a.data + 1

    def at(self, inputs: object) -> None:
        return None


@dataclass(frozen=True)
class LatePosition:
    shared = True

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return LateDraws(shape.heads, shape.width)


class SharesMemory(nn.Module):
    """Two parameters in one memory: neither is freed while the other is needed."""

    def __init__(self, heads: int):
        super().__init__()
        both = torch.randn(2, heads)
        self.first, self.second = nn.Parameter(both[0]), nn.Parameter(both[1])

    def at(self, inputs: object) -> None:
        return None


@dataclass(frozen=True)
class SharedMemoryPosition(LatePosition):
    def build(self, shape: Shape) -> nn.Module:
        return SharesMemory(shape.heads)


@dataclass(frozen=True)
class ChangingPosition(LatePosition):
    """Its constructor does something else each time."""

    def build(self, shape: Shape) -> nn.Module:
        TIMES.append(1)
        module = LateDraws(shape.heads, shape.width)
        for _ in TIMES:
            nn.init.normal_(module.b)
        return module


TIMES: list[int] = []


@pytest.mark.parametrize("position", [LatePosition(), SharedMemoryPosition()])
def test_a_constructor_may_use_its_parameters_as_it_likes(position: object) -> None:
    spec = vt.decoder(vocab=9, width=16, layers=2, heads=2)
    equal(replace(spec, layers=tuple(replace(layer, bias=position) for layer in spec.layers)))


def test_a_constructor_that_changes_is_refused() -> None:
    spec = vt.decoder(vocab=9, width=16, layers=1, heads=2)
    spec = replace(spec, layers=tuple(replace(layer, bias=ChangingPosition()) for layer in spec.layers))
    with pytest.raises(Refused, match="something else the second time"):
        drawn(spec)
