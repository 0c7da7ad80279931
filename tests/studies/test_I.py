"""The studies of interventions, on SmolLM2: what they find, and that a model without training is noticed."""

from __future__ import annotations

import pytest
import torch

from tests.serve.running import pulled
from vantage.model import build, decoder
from vantage.studies import i01_induction_heads, i02_first_token, i03_moved_fact
from vantage.studies.registry import find
from vantage.studies.shared.models import smollm2
from vantage.studies.study import Number, Result, silent


def run(tag: str, **values: int) -> Result:
    study = find(tag)
    return study.run(study.values(values), silent)


def number(result: Result, start: str) -> Number:
    (one,) = [n for n in result.numbers if n.what.startswith(start)]
    return one


def untrained(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    real = smollm2()
    model = build(decoder(vocab=real.spec.vocab, width=32, layers=2, heads=4)).eval()
    model.tokenizer = real.tokenizer
    monkeypatch.setattr(module, "smollm2", lambda: model)


@pytest.mark.slow
def test_I1_heads_found_by_looking_are_heads_found_by_patching() -> None:
    pulled("smollm2")
    result = run("I1")
    assert result.verdict == "agrees", result.words
    recovered, control = (number(result, f"share recovered by one {name}") for name in ("of them", "other head"))
    assert recovered.ours > 3 * abs(control.ours)
    assert recovered.interval is not None
    assert recovered.interval[0] <= recovered.ours <= recovered.interval[1]
    assert len(result.figures) == 2


def test_I1_a_model_without_training_has_no_such_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled("smollm2")
    untrained(monkeypatch, i01_induction_heads)
    result = run("I1")
    assert result.verdict == "mixed"
    assert "look for what came after last time" in result.words


def test_I1_others_are_of_the_same_layers_and_none_of_the_named() -> None:
    pulled("smollm2")
    named = [(3, 1), (3, 2), (9, 0)]
    others = i01_induction_heads._others(named, smollm2(), seed=1)
    assert sorted(layer for layer, _ in others) == [3, 3, 9]
    assert not set(others) & set(named)


@pytest.mark.sampled
def test_I2_the_first_token_is_what_the_model_rests_on() -> None:
    pulled("smollm2")
    result = run("I2", texts=5, tokens=20)
    assert result.verdict == "agrees", result.words
    assert number(result, "more loss, the first token hidden from late ones").ours > 1
    assert number(result, "weight that the second token gains then").ours > 0.2
    assert not torch.is_inference_mode_enabled()


def test_I2_a_model_without_training_rests_on_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled("smollm2")
    untrained(monkeypatch, i02_first_token)
    assert run("I2", texts=3, tokens=20).verdict == "mixed"


@pytest.mark.slow
def test_I3_a_fact_is_bound_by_the_order_of_its_words() -> None:
    pulled("smollm2")
    result = run("I3")
    assert result.verdict == "erratum", result.words  # that distance costs is what came out otherwise
    torn, moved = number(result, "lost, the asked one torn"), number(result, "lost, the asked one moved")
    assert torn.interval is not None
    assert moved.interval is not None
    assert torn.interval[0] > max(0.5, moved.interval[1])
    assert len(result.figures) == 3


def test_I3_a_model_without_training_binds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled("smollm2")
    untrained(monkeypatch, i03_moved_fact)
    assert run("I3", prompts=4).verdict == "mixed"


def test_I3_only_numbers_of_one_sentence_change() -> None:
    pulled("smollm2")
    prompt = i03_moved_fact._prompt(smollm2(), seed=3, asked=1)
    plain = i03_moved_fact._plain(prompt)
    start = prompt.starts[prompt.asked]
    inside = range(start, start + prompt.length)
    assert smollm2().tokenizer.decode(prompt.tokens[start : start + prompt.length]).startswith(" The secret word of")
    moved = i03_moved_fact._moved(prompt, prompt.asked, 100)
    torn = i03_moved_fact._torn(prompt, prompt.asked, 0)
    for n in range(len(prompt.tokens)):
        assert plain[n] - moved[n] == (100 if n in inside else 0)
        assert (torn[n] != plain[n]) == (n in inside)
    assert sorted(torn.tolist()) == plain.tolist()
    assert prompt.tokens.count(prompt.answer) == 1  # it is told once, and asked for at the end
