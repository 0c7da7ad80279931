"""The studies of interventions, on SmolLM2: what they find, and that a model without training is noticed."""

from __future__ import annotations

import pytest
import torch

from tests.serve.running import pulled
from vantage.interventions import TunedLens
from vantage.model import build, decoder
from vantage.studies import (
    i01_induction_heads,
    i02_first_token,
    i03_moved_fact,
    i04_lens,
    i05_direct_attribution,
    i06_path_to_keys,
    i07_steering,
)
from vantage.studies.registry import find
from vantage.studies.shared.models import smollm2
from vantage.studies.shared.repetition import other_heads
from vantage.studies.study import Number, Result, silent


def run(tag: str, **values: int) -> Result:
    study = find(tag)
    return study.run(study.values(values), silent)


def number(result: Result, start: str) -> Number:
    (one,) = [n for n in result.numbers if n.what.startswith(start)]
    return one


def untrained(monkeypatch: pytest.MonkeyPatch, module: object, layers: int = 2) -> None:
    real = smollm2()
    model = build(decoder(vocab=real.spec.vocab, width=32, layers=layers, heads=4)).eval()
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
    others = other_heads(named, smollm2(), seed=1)
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


@pytest.mark.slow
def test_I4_a_fitted_map_reads_the_answer_sooner() -> None:
    pulled("smollm2")
    result = run("I4")
    assert result.verdict == "erratum", result.words  # the logit lens does not come nearer all the way
    tuned, plain = (number(result, f"KL, {name} lens, middle third") for name in ("tuned", "logit"))
    assert tuned.interval is not None
    assert plain.interval is not None
    assert tuned.interval[1] < plain.interval[0]
    assert len(result.figures) == 2


def test_I4_a_model_without_training_forms_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled("smollm2")
    untrained(monkeypatch, i04_lens, layers=6)
    assert run("I4", passages=3, fitted_tokens=256).verdict == "mixed"


def test_I4_the_controls_are_what_they_say() -> None:
    lens = TunedLens({n: torch.full((3, 2), float(n)) for n in range(6)})
    exchanged = i04_lens._exchanged(lens)
    assert [float(exchanged.maps[n][0, 0]) for n in range(6)] == [2, 3, 4, 5, 0, 1]
    model = build(decoder(vocab=32, width=8, layers=2, heads=2)).eval()
    average = i04_lens._average(model, [[1, 2, 3], [4, 5]])
    one, other = (average(1, x) for x in torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(one, other, atol=1e-6)  # whatever stands there


@pytest.mark.slow
def test_I5_heads_that_add_to_the_answer_are_needed() -> None:
    pulled("smollm2")
    result = run("I5")
    assert result.verdict == "agrees", result.words
    chosen, others = (number(result, f"lost without, {name}") for name in ("chosen", "others"))
    assert chosen.interval is not None
    assert others.interval is not None
    assert chosen.interval[0] > others.interval[1]


def test_I5_a_model_without_training_has_no_such_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled("smollm2")
    untrained(monkeypatch, i05_direct_attribution)
    assert run("I5", prompts=4, heads=2).verdict == "mixed"


def test_I6_a_model_without_training_has_no_such_path(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled("smollm2")
    untrained(monkeypatch, i06_path_to_keys)
    result = run("I6", prompts=2)
    assert result.verdict == "mixed"
    assert "look one token back" in result.words


def test_I6_one_word_differs_and_controls_share_no_keys() -> None:
    pulled("smollm2")
    model = smollm2()
    clean, corrupted, answer = i06_path_to_keys._prompt(model, seed=3)
    differ = [n for n, (a, b) in enumerate(zip(clean, corrupted, strict=True)) if a != b]
    assert differ == [i06_path_to_keys.LENGTH - 2]
    assert corrupted[i06_path_to_keys.LENGTH - 1] == answer  # it is still there to be copied

    layer, head = i06_path_to_keys._beside(model, {(18, 6), (18, 0)}, (18, 6), seed=0)
    assert layer == 18
    assert head in (3, 4, 5)  # of nine heads three share keys


def test_I7_a_model_without_training_is_not_steered(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled("smollm2")
    untrained(monkeypatch, i07_steering)
    assert run("I7", layer=0).verdict == "mixed"


def test_I7_mixed_sets_have_as_many_of_either_kind() -> None:
    liked, disliked = [f"liked {n}" for n in range(8)], [f"disliked {n}" for n in range(8)]
    first, second = i07_steering._mixed(liked, disliked, seed=1)
    assert sorted(first + second) == sorted(liked + disliked)
    assert sum(one.startswith("liked") for one in first) == sum(one.startswith("liked") for one in second) == 4


@pytest.mark.slow
def test_I6_keys_of_an_induction_head_come_from_previous_token_heads() -> None:
    pulled("smollm2")
    result = run("I6")
    assert result.verdict == "agrees", result.words
    by_name = {one.what: one for one in result.numbers}
    keys, others = by_name["nats by a path, keys"], by_name["nats by a path, keys, from other heads"]
    assert keys.interval is not None
    assert others.interval is not None
    assert keys.interval[0] > others.interval[1]


@pytest.mark.sampled
def test_I7_a_direction_steers_and_others_of_its_length_do_not() -> None:
    pulled("smollm2")
    result = run("I7")
    assert result.verdict == "agrees", result.words
    by_name = {one.what: one for one in result.numbers}
    added, random = by_name["moved, added"], by_name["moved, random"]
    assert added.interval is not None
    assert random.interval is not None
    assert added.interval[0] > 1 > random.interval[1]
