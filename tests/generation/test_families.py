"""Every family that generates: requests in a batch of mixed lengths, arrivals, a cancellation and preemptions are
what each of them is alone."""

from __future__ import annotations

import copy
import functools
import tempfile

import pytest
import torch

import vantage as vt
from tests.generation.scenario import Ask, alone, asks, bits, emptied, same, together
from tests.parity.case import VOCAB
from tests.parity.cases import CASES
from vantage.errors import Refused
from vantage.generation import Engine

# Options that matter for a cache or an engine, once each; the others are run with the slow tests.
NOTED = {("llama", "multi-query"), ("llama", "dynamic"), ("phi3", "longrope"), ("phi3", "window")}
ROWS = [
    pytest.param(
        case,
        option,
        id=f"{case.family}-{option}",
        marks=() if option == "plain" or (case.family, option) in NOTED else pytest.mark.slow,
    )
    for case in CASES
    if case.kind in ("decoder", "encoder-decoder")
    for option in ("plain", *case.options)
]
SMALL = {"block": 4, "chunk": 8}
CAPACITY = 56  # tokens: not enough for all of them at once


@functools.cache
def loaded(family, kind, option):
    case = next(case for case in CASES if (case.family, case.kind) == (family, kind))
    with tempfile.TemporaryDirectory() as folder:
        case.make(option).save_pretrained(folder)
        return vt.load(folder)


@pytest.mark.parametrize(("case", "option"), ROWS)
def test_together_is_as_alone(case, option):
    model = loaded(case.family, case.kind, option)
    if any(isinstance(layer.ffn, vt.Experts) for layer in model.spec.layers):
        # A router chooses: two experts whose scores differ by less than float32 rounds change places, and what
        # follows is another text (seen in DeepSeek-V3 with YaRN: 0.6 apart, 2e-15 in float64).
        model = copy.deepcopy(model).double()
    wanted = asks(VOCAB, source=model.encoder is not None)
    extra = Ask(wanted[0].tokens, 30, source=wanted[0].source)
    expected = [alone(model, ask, **SMALL) for ask in wanted]
    engine, got = together(model, wanted, cancel=extra, capacity=CAPACITY, **SMALL)
    for mine, other in zip(got, expected, strict=True):
        same(mine, other)
    assert engine.stats.preemptions > 0
    emptied(engine)


@pytest.mark.sampled
@pytest.mark.parametrize(("case", "option"), ROWS)
def test_batch_invariant_is_alone_bit_for_bit(case, option):
    model = loaded(case.family, case.kind, option)
    wanted = asks(VOCAB, source=model.encoder is not None)
    expected = [alone(model, ask, batch_invariant=True, **SMALL) for ask in wanted]
    engine, got = together(model, wanted, batch_invariant=True, capacity=CAPACITY, **SMALL)
    for mine, other in zip(got, expected, strict=True):
        bits(mine, other)
    assert engine.stats.preemptions > 0
    emptied(engine)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.kind in ("encoder", "image")], ids=lambda case: case.family
)
def test_families_without_a_decoder_are_refused(case):
    model = loaded(case.family, case.kind, "plain")
    with pytest.raises(Refused, match=r"no head|sees what comes after|not tokens"):
        Engine(model)


@torch.no_grad()
@pytest.mark.parametrize(("case", "option"), [row for row in ROWS if row.values[1] == "plain"])
def test_log_probabilities_are_those_of_teacher_forcing(case, option):
    """One full pass over prompt and answer says the same of every token."""
    model = loaded(case.family, case.kind, option)
    wanted = asks(VOCAB, source=model.encoder is not None)
    _, got = together(model, wanted, **SMALL)
    for ask, request in zip(wanted, got, strict=True):
        told = [*ask.tokens, *request.outputs[0].tokens]
        source = {} if ask.source is None else {"source": torch.tensor([ask.source])}
        logprobs = model(torch.tensor([told]), **source)[0].log_softmax(-1)
        for i, pick in enumerate(request.outputs[0].picks):
            at = len(ask.tokens) + i
            assert abs(float(logprobs[at - 1, told[at]]) - pick.logprob) < 1e-4
