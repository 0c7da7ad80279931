"""P15, P16 and K7: what they ask, that their references hold, and that a model without training finds nothing."""

from __future__ import annotations

import itertools

import pytest
import torch

import vantage as vt
from vantage.cache.kinds.tova import TovaCache
from vantage.model import build
from vantage.studies import k07_eviction, p15_counted_by_content, p16_short_convolution
from vantage.studies.shared.small_training import repeated


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def number(outcome, what: str):
    (found,) = [n for n in outcome.result.numbers if n.what.startswith(what)]
    return found


@pytest.mark.parametrize("drawn", [p15_counted_by_content.random_gaps, p15_counted_by_content.even_gaps])
def test_P15_asks_for_the_value_that_its_last_token_says(drawn):
    tokens, answers = drawn(generator(), 50, 32, 5)
    gaps = set()
    for row, answer in zip(tokens.tolist(), answers[:, 0].tolist(), strict=True):
        values = [token for token in row if token < 8]
        assert answer == values[-1 - (row[-1] - 12)]
        assert all(token < 12 for token in row[:-1])
        at = [place for place, token in enumerate(row) if token < 8]
        gaps |= {b - a for a, b in itertools.pairwise(at)}
    assert gaps == ({3} if drawn is p15_counted_by_content.even_gaps else set(range(1, 7)))


def test_P16_every_answer_is_what_followed_before():
    tokens, answers = repeated(generator(), 5, 32, 8)
    assert tokens.shape == (5, 15)
    assert answers.shape == (5, 7)
    for row, wanted in zip(tokens.tolist(), answers.tolist(), strict=True):
        assert len(set(row[:8])) == 8
        assert wanted == [row[row.index(token) + 1] for token in row[8:]]


@pytest.mark.sampled
def test_P15_models_without_training_are_told():
    found = vt.studies.run("P15", seeds=2, steps=10)
    assert found.verdict == "mixed"
    assert "control: RoPE counts where gaps are even" in found.result.words
    assert len(found.result.figures) == 2


def test_P16_models_without_training_are_told():
    found = vt.studies.run("P16", seeds=2, steps=10)
    assert found.verdict == "mixed"
    assert "with a convolution it is right at the trained lengths" in found.result.words


def test_K7_a_model_without_training_is_told_and_its_caches_are_one_pass_with_keys_masked():
    found = vt.studies.run("K7", texts=4, steps=10)
    assert found.verdict == "mixed"
    assert "with all kept it is right at every depth" in found.result.words
    for name in k07_eviction.KINDS:
        assert number(found, f"{name}: furthest from one pass").ours < 1e-4


def test_K7_the_reference_notices_a_key_too_many(monkeypatch):
    model = build(p16_short_convolution.models()[p16_short_convolution.WITH], seed=1).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    texts = torch.rand(2, 32, generator=generator()).argsort(1)
    assert k07_eviction._from_one_pass(model, texts, TovaCache(12)) < 1e-4
    monkeypatch.setattr(k07_eviction, "_hidden", lambda seen: [])
    assert k07_eviction._from_one_pass(model, texts, TovaCache(12)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("tag", "verdict"), [("P15", "erratum"), ("P16", "erratum"), ("K7", "agrees")])
def test_what_was_concluded_comes_out_again(tag, verdict):
    found = vt.studies.run(tag)
    assert found.verdict == verdict, found.result.words
