"""What everybody asks of a model: where it is, what it is, how long a text it takes."""

from dataclasses import replace

import pytest
import torch

from vantage.errors import Refused
from vantage.generation import generate
from vantage.model import build, decoder, empty_model, encoder, encoder_decoder, no_weights
from vantage.model.packed import quantise
from vantage.model.patches import Patches
from vantage.model.recurrent import RecurrentModel, RecurrentSpec
from vantage.position import Learned
from vantage.spec.masks import Causal, Everything, Prefix
from vantage.spec.model import Embedding, Head

SMALL = {"vocab": 16, "width": 32, "layers": 2, "heads": 2}


def test_device_and_dtype_are_those_of_the_weights():
    model = build(decoder(**SMALL))
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    model = model.to("meta", torch.bfloat16)
    assert (model.device, model.dtype) == (torch.device("meta"), torch.bfloat16)
    packed = build(decoder(**SMALL))
    quantise(packed, 8)
    assert (packed.device, packed.dtype) == (torch.device("cpu"), torch.float32)
    recurrent = RecurrentModel(RecurrentSpec(8, 4)).to("meta", torch.float64)
    assert (recurrent.device, recurrent.dtype) == (torch.device("meta"), torch.float64)


def test_the_device_of_a_model_of_images():
    spec = replace(encoder(**SMALL), embedding=Embedding(source=Patches((4, 4), (2, 2))))
    model = empty_model(spec)
    assert model.device == torch.device("meta")
    assert model.spec.kind == "encoder"


@pytest.mark.parametrize(
    ("spec", "kind", "causal", "generates"),
    [
        (decoder(**SMALL), "decoder", True, True),
        (decoder(**SMALL, window=3), "decoder", True, True),
        (decoder(**SMALL, mask=Causal() | Prefix(4)), "decoder", False, True),
        (replace(decoder(**SMALL), head=None), "encoder", True, False),
        (encoder(**SMALL), "encoder", False, False),
        (replace(encoder(**SMALL), head=Head()), "encoder", False, False),
        (decoder(**SMALL, mask=Everything()), "encoder", False, False),
        (encoder_decoder(**SMALL), "encoder-decoder", True, True),
    ],
)
def test_what_a_model_is(spec, kind, causal, generates):
    assert (spec.kind, spec.causal, spec.generates) == (kind, causal, generates)
    model = empty_model(spec)
    assert (model.kind, model.causal, model.generates) == (kind, causal, generates)


def test_who_cannot_generate_says_why():
    spec = encoder(**SMALL)
    assert "no head" in spec.why_no_generation
    assert "layer 0 sees what comes after" in replace(spec, head=Head()).why_no_generation
    images = replace(spec, head=Head(), embedding=Embedding(source=Patches((4, 4), (2, 2))))
    assert "not tokens" in images.why_no_generation
    assert decoder(**SMALL).why_no_generation is None
    with pytest.raises(Refused, match="layer 0 sees what comes after"):
        generate(build(replace(spec, head=Head())).eval(), [1, 2], max_tokens=1)


def test_how_many_positions_there_are_and_how_long_a_text_it_takes():
    free = empty_model(decoder(**SMALL))
    assert (free.max_positions, free.context_length) == (None, None)
    said = empty_model(decoder(**SMALL, max_length=64))
    assert (said.max_positions, said.context_length) == (None, 64)
    table = empty_model(decoder(**SMALL, position=Learned(24)))
    assert (table.max_positions, table.context_length) == (24, 24)
    longer = empty_model(decoder(**SMALL, position=Learned(24), max_length=64))
    assert (longer.max_positions, longer.context_length) == (24, 24)
    endless = empty_model(decoder(**SMALL, position=Learned(24, extend="wrap"), max_length=64))
    assert (endless.max_positions, endless.context_length) == (None, 64)


def test_an_empty_model_has_shapes_and_no_memory():
    full, empty = build(decoder(**SMALL)), empty_model(decoder(**SMALL), kernel="reference")
    assert {n: p.shape for n, p in full.named_parameters()} == {n: p.shape for n, p in empty.named_parameters()}
    assert all(p.is_meta for p in empty.parameters())
    assert empty.kernel == "reference"


def test_nothing_is_drawn_without_weights():
    state = torch.get_rng_state()
    with no_weights():
        linear = torch.nn.Linear(2, 2)
    assert linear.weight.is_meta
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.nn.Linear(2, 2).weight.is_meta
