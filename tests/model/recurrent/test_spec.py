"""Specs, sizes, and what is refused."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.recurrent.helpers import SHAPES, WAYS, model_of, padded, spec_of, tokens
from vantage.errors import BadInput, Refused
from vantage.model.recurrent import RecurrentSpec, build_recurrent, parameters, same_size


@pytest.mark.parametrize(
    ("attention", "feed", "fed"),
    [
        (None, None, None),
        ("dot", None, "nothing"),
        ("general", None, "nothing"),
        ("additive", None, "context"),
        ("additive", "nothing", "nothing"),
        ("dot", "attended", "attended"),
    ],
)
def test_what_is_fed(attention, feed, fed):
    assert RecurrentSpec(5, 4, attention=attention, feed=feed).fed == fed


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"cell": "gur"}, BadInput, r"no cell is called 'gur'\. Did you mean 'gru'\? There are: rnn, gru, lstm"),
        ({"attention": "luong"}, BadInput, "no attention is called 'luong'.*additive"),
        ({"attention": "dot", "feed": "contexts"}, BadInput, "mean 'context'"),
        ({"feed": "context"}, Refused, "without attention"),
        ({"width": 0}, BadInput, "width=0: use a whole number"),
        ({"layers": True}, BadInput, "layers=True"),
        ({"vocab": 2.0}, BadInput, r"vocab=2\.0"),
        ({"bidirectional": 1}, BadInput, "bidirectional=1"),
        ({"bidirectional": True, "width": 5}, Refused, "make it even"),
        ({"dropout": 1.0}, BadInput, r"dropout=1\.0"),
        ({"dropout": float("nan")}, BadInput, "dropout=nan"),
        ({"dropout": "0.1"}, BadInput, "dropout='0.1'"),
    ],
)
def test_bad_specs_are_refused(changed, error, says):
    with pytest.raises(error, match=says):
        replace(RecurrentSpec(11, 4), **changed)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m(tokens(2, 3), source=tokens(3, 3)), "2 rows of tokens for 3 sources"),
        (lambda m: m(tokens(2, 3).float(), source=tokens(2, 3)), "whole numbers"),
        (lambda m: m(tokens(2, 3), source=tokens(2, 3) + 9), "not in the vocabulary"),
        (lambda m: m(tokens(2, 3) - 5, source=tokens(2, 3)), "not in the vocabulary"),
        (lambda m: m(tokens(2, 0), source=tokens(2, 3)), "at least one"),
        (lambda m: m(tokens(2, 3), source=tokens(2, 0)), "at least one"),
        (lambda m: m(tokens(2, 3), source=tokens(2, 3), source_mask=torch.ones(2, 3)), "false at padding"),
        (lambda m: m(tokens(2, 3), source=tokens(2, 3), source_mask=torch.ones(2, 4) > 0), r"shape \(2, 4\)"),
        (
            lambda m: m(tokens(2, 3), source=tokens(2, 2), source_mask=torch.tensor([[True, True], [False] * 2])),
            "row 1 of the source is padding alone",
        ),
        (
            lambda m: m(tokens(2, 3), source=tokens(2, 2), source_mask=torch.tensor([[True, True], [False, True]])),
            "row 1 of the source has padding before a token",
        ),
        (lambda m: m.step(tokens(3, 1), m.encode(tokens(2, 3))), "3 rows of tokens for 2 sources"),
        (lambda m: m.greedy(tokens(2, 3), max_tokens=0, start=0, end=1), "max_tokens=0"),
        (lambda m: m.greedy(tokens(2, 3), max_tokens=3, start=11, end=1), "start=11 is not in the vocabulary of 11"),
        (lambda m: m.greedy(tokens(2, 3), max_tokens=3, start=0, end=-1), "end=-1"),
    ],
)
def test_bad_input_is_refused(call, says):
    with pytest.raises(BadInput, match=says):
        call(model_of(("general", None)))


def test_no_alignment_without_attention():
    with pytest.raises(Refused, match="no attention, so there is no alignment"):
        model_of().align(tokens(2, 3), source=padded([3, 2])[0])


@settings(max_examples=40)
@given(st.sampled_from(WAYS), st.sampled_from(SHAPES), st.integers(1, 12))
def test_parameters_are_those_of_the_model(way, shape, half):
    spec = spec_of(way, shape, width=2 * half)
    assert parameters(spec) == sum(p.numel() for p in build_recurrent(spec).parameters())


@settings(max_examples=15)
@given(
    st.sampled_from(WAYS), st.sampled_from(SHAPES), st.sampled_from(WAYS), st.sampled_from(SHAPES), st.integers(4, 90)
)
def test_no_other_width_is_nearer(way, shape, other_way, other_shape, half):
    reference = spec_of(way, shape, width=2 * half)
    found = same_size(spec_of(other_way, other_shape), reference)
    assert replace(found, width=6) == spec_of(other_way, other_shape)
    wanted, unit = parameters(reference), 2 if found.bidirectional else 1
    off = abs(parameters(found) - wanted)
    assert off <= abs(parameters(replace(found, width=found.width + unit)) - wanted)
    if found.width > unit:
        assert off <= abs(parameters(replace(found, width=found.width - unit)) - wanted)


def test_the_size_of_itself():
    spec = spec_of(("additive", None), width=34)
    assert same_size(spec, spec) == spec


def test_too_small_to_match():
    with pytest.raises(BadInput, match="at the least width"):
        same_size(spec_of(("additive", None), ("lstm", 2, True)), RecurrentSpec(2, 1, cell="rnn"))
