"""Parts that keep what their constructor computes as buffers: built, saved, loaded, cast, and refused."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import vantage as vt
from vantage.compare.extension.rules import rescaled
from vantage.errors import Refused
from vantage.model.skeleton import _only_buffers, empty_model
from vantage.parts import registry
from vantage.spec.forms import Slope
from vantage.spec.parts import BiasInputs, Parts, Shape

SMALL = {"vocab": 16, "width": 32, "layers": 2, "heads": 2}
TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


@dataclass(frozen=True)
class Buffered:
    """A slope for each head, kept as torch's own modules keep what is not learned."""

    persistent: bool = False

    shared = False

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return BufferedSlopes(shape.heads, self.persistent)


class BufferedSlopes(nn.Module):
    slopes: Tensor
    count: Tensor

    def __init__(self, heads: int, persistent: bool):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(heads))
        self.register_buffer("slopes", 1 / torch.arange(1, heads + 1), persistent=persistent)
        self.register_buffer("count", torch.tensor(heads), persistent=persistent)

    def at(self, inputs: BiasInputs) -> Slope:
        return Slope(self.slopes + self.offset)


@pytest.fixture
def spec():
    vt.register("position", "buffered", Buffered)
    yield vt.decoder(**SMALL, position=Buffered())
    registry("position").unregister("buffered")


def test_what_is_loaded_computes_as_what_was_saved(spec, tmp_path):
    model = vt.build(spec).eval()
    vt.save(model, tmp_path)
    loaded = vt.load(tmp_path)
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    assert vt.check(loaded).ok


def test_a_dtype_is_that_of_buffers_too(spec, tmp_path):
    model = vt.build(spec).eval()
    vt.save(model, tmp_path)
    loaded, moved = vt.load(tmp_path, dtype=torch.bfloat16), model.to(torch.bfloat16)
    dtypes = {name: buffer.dtype for name, buffer in loaded.named_buffers()}
    assert dtypes == {name: buffer.dtype for name, buffer in moved.named_buffers()}
    assert set(dtypes.values()) == {torch.bfloat16, torch.int64}
    assert torch.equal(loaded(TOKENS), moved(TOKENS))


def test_an_empty_model_has_values_in_buffers_alone(spec):
    state = torch.get_rng_state()
    empty = empty_model(spec)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.is_meta for p in empty.parameters())
    assert [tuple(b.tolist()) for n, b in empty.named_buffers() if n.endswith("slopes")] == [(1.0, 0.5)] * 2
    tied = empty_model(vt.decoder(**SMALL, position=Buffered(), tied=True))
    assert tied.head.linear.weight is tied.embed.tokens.weight


def test_other_threads_keep_their_weights(spec):
    """torch's hook is for all threads: a model that is built beside has memory."""
    weights: list[Tensor] = []
    thread = threading.Thread(target=lambda: weights.append(nn.Linear(2, 2).weight))
    with _only_buffers():
        thread.start()
        thread.join()
        own = nn.Linear(2, 2).weight
    assert own.is_meta
    assert not weights[0].is_meta


def test_a_rescaled_model_has_them_as_well(spec):
    layers = tuple(replace(layer, qk=(vt.Rope(),)) for layer in spec.layers)
    model = vt.build(replace(spec, layers=layers, max_length=16)).to(torch.float64)
    values = {name: buffer.tolist() for name, buffer in model.named_buffers()}
    again = rescaled(model, "linear", 2.0, 16)
    assert {name: buffer.tolist() for name, buffer in again.named_buffers()} == values
    assert {buffer.dtype for buffer in again.buffers()} == {torch.float64, torch.int64}


def test_a_buffer_that_would_have_to_be_saved_is_refused():
    with pytest.raises(Refused, match=r"BufferedSlopes keeps the buffer 'blocks\.0.*count', and only parameters are"):
        vt.build(vt.decoder(**SMALL, position=Buffered(persistent=True)))
