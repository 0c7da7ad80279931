"""A broken part of one's own: the error names the part, the layer and the call, and keeps the original."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vantage as vt
from vantage.errors import BadInput, PartError
from vantage.kernels.reference import Reference
from vantage.parts import registry
from vantage.spec.parts import Attended, BiasInputs, Dense, Need, Parts, Pointwise, Shape, View
from vantage.spec.positions import Pair, Place, Positions

TOKENS = torch.arange(12).reshape(2, 6)


class BrokenModule(nn.Module):
    """A bias, a q/k transform and an input position, all in one, with a mistake."""

    def __init__(self, mistake: str):
        super().__init__()
        self.mistake = mistake

    def change(self, x: Tensor) -> Tensor:
        if self.mistake == "raises":
            raise KeyError("no such table")
        wrong = {
            "shape": lambda: x[..., :-1],
            "dtype": lambda: x.double(),
            "device": lambda: x.to("meta"),
        }
        return wrong.get(self.mistake, lambda: x)()

    def at(self, inputs: BiasInputs) -> Any:
        q, k = inputs.q, inputs.k
        if self.mistake == "pointwise":
            return Raising()
        if self.mistake == "nothing":
            return "a bias"
        return Dense(self.change(torch.zeros(len(q), q.shape[1], q.shape[2], k.shape[2])))

    def query(self, q: Tensor, pos: Positions) -> Tensor:
        return self.change(q)

    def key(self, k: Tensor, pos: Positions) -> Tensor:
        return k

    def forward(self, x: Tensor, pos: Positions) -> Tensor:
        return self.change(x)


@dataclass(frozen=True, eq=False)
class Raising(Pointwise):
    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        raise ZeroDivisionError("by nothing")


@dataclass(frozen=True)
class Faulty:
    """An encoding that acts where it is told."""

    place: str
    mistake: str = ""
    shared = True

    def parts(self, *, causal: bool) -> Parts:
        if self.place == "qk":
            return Parts(qk=(self,))
        return Parts(inputs=(self,)) if self.place == "inputs" else Parts(bias=self)

    def build(self, shape: Shape) -> Any:
        if self.mistake == "build":
            raise OSError("no table on this disk")
        if self.mistake == "refused":
            raise BadInput("heads=3: use 4")
        if self.mistake == "no module":
            return object()
        return nn.Identity() if self.mistake == "no methods" else BrokenModule(self.mistake)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    vt.register("position", "faulty", Faulty, default=lambda n: Faulty("bias"))
    yield
    registry("position").unregister("faulty")


def spec(place: str, mistake: str) -> vt.ModelSpec:
    return vt.decoder(vocab=12, width=16, layers=2, heads=2, position=Faulty(place, mistake))


@pytest.mark.parametrize(
    ("place", "mistake", "says", "cause"),
    [
        (
            "bias",
            "raises",
            r"the score bias 'faulty' \(BrokenModule\), layer 0, raised in change\(\): KeyError",
            KeyError,
        ),
        (
            "bias",
            "pointwise",
            r"the score bias 'faulty' \(Raising\), layer 0, raised in __call__\(\): ZeroDiv",
            ZeroDivisionError,
        ),
        (
            "bias",
            "shape",
            r"the score bias 'faulty' \(BrokenModule\), layer 0, returned a tensor of shape",
            RuntimeError,
        ),
        ("bias", "nothing", r"the score bias 'faulty' \(BrokenModule\), layer 0,", Exception),
        ("bias", "device", r"the score bias 'faulty' \(BrokenModule\), layer 0, returned a tensor on meta", Exception),
        ("qk", "raises", r"the q/k transform 'faulty' \(BrokenModule\), layer 0, raised in change\(\)", KeyError),
        (
            "qk",
            "shape",
            r"the q/k transform 'faulty' \(BrokenModule\), layer 0, returned a tensor of shape .* from query\(\)",
            RuntimeError,
        ),
        (
            "qk",
            "dtype",
            r"the q/k transform 'faulty' \(BrokenModule\), layer 0, returned torch.float64 where",
            RuntimeError,
        ),
        ("qk", "device", r"the q/k transform 'faulty' \(BrokenModule\), layer 0, returned a tensor on meta", Exception),
        ("inputs", "raises", r"the position added to the embeddings 'faulty' \(BrokenModule\) raised in", KeyError),
        (
            "inputs",
            "shape",
            r"the position added to the embeddings 'faulty' \(BrokenModule\).* shape \(2, 3, 15\) where \(2, 3, 16\)",
            RuntimeError,
        ),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_a_pass_that_fails_names_the_part(place: str, mistake: str, says: str, cause: type, cached: bool):
    model = vt.build(spec(place, mistake))
    with torch.no_grad(), pytest.raises(PartError, match=says) as caught:
        model(TOKENS, cache=model.new_cache(2) if cached else None)
    assert isinstance(caught.value.__cause__, cause)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("build", r"the score bias 'faulty' \(Faulty\), layer 0, raised in build\(\): OSError: no table on this disk"),
        (
            "no module",
            r"the score bias 'faulty' \(Faulty\), layer 0, built a object: build\(\) must return a torch.nn.Module",
        ),
        ("no methods", r"the score bias 'faulty' \(Faulty\), layer 0, built Identity, which has no at\(\)"),
    ],
)
def test_a_part_that_cannot_be_built_is_named(mistake: str, says: str):
    with pytest.raises(PartError, match=says):
        vt.build(spec("bias", mistake))


def test_what_a_part_refuses_is_said_in_its_own_words():
    with pytest.raises(BadInput, match="heads=3: use 4"):
        vt.build(spec("bias", "refused"))


def test_a_part_that_is_right_is_left_alone():
    model = vt.build(spec("qk", ""))
    assert model(TOKENS).shape == (2, 6, 12)
    with pytest.raises(BadInput, match="not in the vocabulary"):
        model(TOKENS + 1)


@dataclass(frozen=True)
class BrokenLayer:
    """A norm or a feed-forward layer."""

    mistake: str
    context: bool = False

    def build(self, width: int) -> nn.Module:
        return BrokenLayerModule(self.mistake)


class BrokenLayerModule(nn.Module):
    def __init__(self, mistake: str):
        super().__init__()
        self.mistake = mistake

    def forward(self, x: Tensor, ctx: Any = None) -> Tensor:
        if self.mistake == "raises":
            raise IndexError("too far")
        return x[..., :-1] if self.mistake == "shape" else x


@pytest.mark.parametrize("role", ["norm", "ffn"])
@pytest.mark.parametrize("mistake", ["raises", "shape"])
def test_norms_and_feed_forward_layers_are_named(role: str, mistake: str):
    options: dict[str, Any] = {role: BrokenLayer(mistake)}
    model = vt.build(vt.decoder(vocab=12, width=16, layers=2, heads=2, **options))
    word = {"norm": "norm", "ffn": "feed-forward layer"}[role]
    with pytest.raises(PartError, match=f"the {word} BrokenLayerModule, layer 0,"):
        model(TOKENS)


class BrokenKernel(Reference):
    name = "broken"

    def __init__(self, mistake: str):
        self.mistake = mistake

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        if self.mistake == "raises":
            raise IndexError("too far")
        return Attended(super().__call__(q_BHTd, view, pair, need).out[..., :-1])


@pytest.mark.parametrize(
    ("mistake", "says"), [("raises", "raised in __call__"), ("shape", "returned a tensor of shape")]
)
def test_a_kernel_is_named(mistake: str, says: str):
    model = vt.build(vt.decoder(vocab=12, width=16, layers=2, heads=2), kernel=BrokenKernel(mistake))
    with pytest.raises(PartError, match=rf"the kernel BrokenKernel, layer 0, {says}"):
        model(TOKENS)


def test_what_is_not_a_part_s_fault_is_raised_as_it_is():
    model = vt.build(spec("qk", ""))
    model.blocks[1].register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(TOKENS)
