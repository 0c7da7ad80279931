"""Equal parameters: as many in every model, by nothing but the feed-forward layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vantage.compare.entries import ModelShape, section
from vantage.compare.equal import TOLERANCE, hidden_of, matched, parameters
from vantage.compare.experiment import Experiment
from vantage.compare.setups import notes
from vantage.errors import BadInput
from vantage.model import build

EVERY = {"positions": ("none", "learned", "t5", "shaw", "fire"), "attention": ("multi-head", "multi-query")}


def test_counts_are_equal_and_only_the_feed_forward_layers_differ():
    experiment, plain = Experiment(equal="parameters", **EVERY), Experiment(**EVERY)
    vocab = experiment.vocab("ordering")
    sections = [experiment.section(*entry) for entry in experiment.entries()]
    counts = [sum(p.numel() for p in build(section.spec(vocab), seed=0).parameters()) for section in sections]
    assert (max(counts) - min(counts)) / max(counts) <= TOLERANCE
    before = [plain.section(*entry) for entry in plain.entries()]
    apart = [parameters(section, vocab) for section in before]
    assert (max(apart) - min(apart)) / max(apart) > 0.05
    assert max(counts) == pytest.approx(max(apart), rel=TOLERANCE)
    for made, was in zip(sections, before, strict=True):
        assert replace(made, ffn=was.ffn) == was
        assert hidden_of(made) >= hidden_of(was)


def test_the_report_says_how():
    lengths = {"train_length": 20, "test_lengths": (20, 100)}
    (note,) = notes(Experiment(("ordering",), ("none", "learned"), equal="parameters", **lengths))
    assert "none 209; learned 192" in note
    assert "130,496 to 130,624" in note
    assert notes(Experiment()) == []


def test_what_cannot_be_equal_is_refused():
    with pytest.raises(BadInput, match="Did you mean 'parameters'"):
        Experiment(equal="parameter")
    small = {
        (name, "multi-head"): section(name, "multi-head", ModelShape(8, 8, 2), 12) for name in ("none", "learned")
    }  # twelve rows of eight are half of what one more unit in eight layers is
    with pytest.raises(BadInput, match="larger width"):
        matched(small, 2)
