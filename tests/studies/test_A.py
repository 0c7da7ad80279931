"""The studies of attention: their verdicts, their numbers against other arithmetic, and that they can fail."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.serve.running import pulled
from vantage.attention import Dot, GroupedQueryAttention, grouped
from vantage.attention.scorer import Scorer, merge_heads
from vantage.cache import ModelCache
from vantage.figures import Bars, Heat, Histogram, Lines
from vantage.kernels import reference
from vantage.model import build, decoder
from vantage.spec.masks import Causal
from vantage.spec.normalisers import Softmax
from vantage.studies import (
    a01_rnn_attention,
    a03_translation_alignment,
    a09_heat_maps,
    a13_one_head_noise,
    a15_hard_attention,
    a17_head_atlas,
)
from vantage.studies.registry import find, tags
from vantage.studies.shared.models import smollm2
from vantage.studies.study import Result, silent
from vantage.training.translate import words

QUICK = {  # the expected verdict, and parameters other than the defaults
    "A2": ("erratum", {}),
    "A4": ("erratum", {"texts": 60}),
    "A5": ("erratum", {}),
    "A6": ("agrees", {}),
    "A7": ("agrees", {}),
    "A8": ("agrees", {}),
    "A9": ("erratum", {}),
    "A10": ("agrees", {}),
    "A11": ("agrees", {}),
    "A12": ("erratum", {}),
    "A13": ("erratum", {}),
    "A14": ("erratum", {}),
    "A15": ("agrees", {"depth": 3}),
    "A16": ("erratum", {}),
}
OTHER = {  # parameters with which some number must come out differently
    "A2": {"s1": -1.0},
    "A4": {"texts": 60, "tokens": 8},
    "A5": {"tokens": 5},
    "A6": {"heads": 2},
    "A7": {"heads": "4"},
    "A8": {"sources": 4},
    "A9": {"shuffle": 3},
    "A10": {"temperature": 2.0},
    "A11": {"keys": 50},
    "A12": {"gain": 6.0},
    "A13": {"keys": 5},
    "A14": {"keys": 5},
    "A15": {"depth": 2},
    "A16": {"head_dim": 16},
}


@functools.cache
def _ran(tag: str, given: tuple[tuple[str, object], ...]) -> Result:
    study = find(tag)
    return study.run(study.values(dict(given)), silent)


def ran(tag: str, **given) -> Result:
    """Run anew only if it was not run with these parameters before."""
    return _ran(tag, tuple((given or QUICK[tag][1]).items()))


def fresh(tag: str, **given) -> Result:
    """Run now, whatever was run before: something has been changed."""
    study = find(tag)
    return study.run(study.values(given or QUICK[tag][1]), silent)


def numbers(result: Result) -> dict[str, object]:
    return {n.what: n.ours for n in result.numbers}


def number(result: Result, start: str) -> float:
    (found,) = [n.ours for n in result.numbers if n.what.startswith(start)]
    assert not isinstance(found, str)
    return found


def drawn(panel) -> list[float | None]:
    """Every number of a panel."""
    if isinstance(panel, Lines):
        ends = [line.low or () for line in panel.lines] + [line.high or () for line in panel.lines]
        return [*itertools.chain(*(line.x for line in panel.lines), *(line.y for line in panel.lines), *ends)]
    if isinstance(panel, Bars):
        return [*itertools.chain(*(y for _, y in panel.series), *(panel.low or ()), *(panel.high or ()))]
    if isinstance(panel, Histogram):
        return [*itertools.chain(*(x for _, x in panel.samples))]
    return [*itertools.chain(*panel.values)]


def whole(result: Result) -> None:
    """What every result must be."""
    assert result.words
    assert len({n.what for n in result.numbers}) == len(result.numbers)
    assert len({f.name for f in result.figures}) == len(result.figures) > 0
    for n in result.numbers:
        assert (n.document is None) == (n.agrees is None)
        assert isinstance(n.ours, str) or math.isfinite(n.ours)
        assert n.interval is None or n.interval[0] <= n.interval[1]
    for figure in result.figures:
        assert figure.caption
        for panel in figure.panels:
            there = [x for x in drawn(panel) if x is not None]
            assert there
            assert all(math.isfinite(x) for x in there)
            if isinstance(panel, Lines):
                assert all(len(line.x) == len(line.y) for line in panel.lines)
            if isinstance(panel, Heat):
                assert panel.x_ticks is None or all(len(row) == len(panel.x_ticks) for row in panel.values)
                assert panel.y_ticks is None or len(panel.values) == len(panel.y_ticks)


def test_every_tag_of_the_letter_has_a_study():
    assert [tag for tag in tags() if tag[0] == "A"] == [f"A{i}" for i in range(1, 18)]


@pytest.mark.parametrize("tag", [f"A{i}" for i in range(1, 18)])
def test_what_a_study_says_of_itself(tag):
    study = find(tag)
    assert study.explanation.count("\n\n") == 1
    assert min(map(len, study.explanation.split("\n\n"))) > 150
    assert study.parameters
    assert study.values({}) == {p.name: p.read(p.default) for p in study.parameters}
    assert study.trains is (tag in ("A1", "A3"))
    assert study.needs == (("smollm2",) if tag == "A17" else ())


@pytest.mark.parametrize("tag", QUICK)
def test_the_verdict(tag):
    result = ran(tag)
    assert result.verdict == QUICK[tag][0]
    assert any(n.agrees is False for n in result.numbers) is (result.verdict == "erratum")
    whole(result)


@pytest.mark.parametrize("tag", OTHER)
def test_another_parameter_another_result(tag):
    result = ran(tag, **OTHER[tag])
    assert result.verdict == QUICK[tag][0]
    assert numbers(result) != numbers(ran(tag))
    whole(result)


# ---- the numbers, by other means


def softmax(x) -> np.ndarray:
    e = np.exp(np.asarray(x, float) - np.max(x, -1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_A2_weights_context_and_update():
    found = numbers(ran("A2"))
    w = softmax([0.5, 0.2, 0.7])
    assert [found[f"weight of h{i}"] for i in (1, 2, 3)] == pytest.approx(w.tolist(), abs=1e-12)
    context = (w[0] + w[2], w[1] + w[2])
    assert found["context, first number"] == pytest.approx(context[0], abs=1e-12)
    assert found["context, second number"] == pytest.approx(context[1], abs=1e-12)
    assert context == pytest.approx((0.74991, 0.66242), abs=5e-6)
    new = [found[f"tanh(s + c), number {i}, with the document's state"] for i in (1, 2)]
    assert new == pytest.approx([math.tanh(0.5 + context[0]), math.tanh(0.2 + context[1])])
    wrong = {n.what for n in ran("A2").numbers if n.agrees is False}
    assert wrong == {"weight of h1", "weight of h3", "context, second number"}


def test_A3_the_small_language():
    training, held_out = a03_translation_alignment.language(0)
    sources = {p.source for p in training}
    assert len(sources) == len(training) == a03_translation_alignment.TRAINED
    assert not sources & {p.source for p in held_out}
    assert "i am learning" not in sources
    dictionary = a03_translation_alignment.VERBS | a03_translation_alignment.NOUNS | a03_translation_alignment.TIMES
    for pair in held_out:
        source, target = words(pair.source), words(pair.target)
        for s, t, kind in pair.links:
            if kind in ("verb", "noun", "time"):
                assert dictionary[source[s]] == target[t]
        assert "j' " not in pair.target
    assert any(p.target.startswith("j'étais en train") for p in training)


def test_A4_numbers():
    found = ran("A4")
    for n in found.numbers[:2]:
        assert n.interval is not None
        assert n.interval[0] < n.ours < n.interval[1]
    assert number(found, "variance when divided by 1/√d") == pytest.approx(64**2, rel=0.1)
    assert number(found, "entropy of the weights, scaled") > 0.8 * math.log(16)
    assert number(found, "entropy of the weights, no scale") < 0.3 * math.log(16)


def test_A5_numbers():
    found = ran("A5")
    assert numbers(found)["largest weight above the diagonal"] == 0.0
    wrong = {n.what: (n.ours, n.document) for n in found.numbers if n.agrees is False}
    assert list(wrong.values()) == [("6 × 6", "4 × 4"), ("self", "cross")]
    assert number(found, "largest difference of the two forms") > 1e-3
    weights = found.figures[0].panels[2]
    assert isinstance(weights, Heat)
    assert all(row[i + 1 :] == [0.0] * (5 - i) for i, row in enumerate(weights.values))


def test_A7_numbers():
    found = ran("A7")
    assert number(found, "multiply-accumulates that one") == 2 * 48 * 8**2 * 7
    assert number(found, "bytes of the cache, MHA") == 2 * 2 * 2 * 48 * 8 * 8 * 4  # k and v, batch, layers, float32
    assert number(found, "bytes of the cache, MQA") == 2 * 2 * 2 * 48 * 8 * 4


@pytest.mark.parametrize("gain", [0.0, 6.0])
def test_A8_copies(gain):
    off = 5 * (1 - softmax([gain, 0, 0])[0])
    assert number(ran("A8", gain=gain), "largest distance of a copied value") == pytest.approx(off)


def test_A9_numbers_and_exercise():
    found = ran("A9")
    assert number(found, "matrix 2: the diagonal") == pytest.approx(0.99963, abs=5e-6)
    assert number(found, "matrix 2: off") == pytest.approx(math.exp(1) / (math.exp(10) + 3 * math.exp(1)))
    for shuffle in range(4):
        result = ran("A9", shuffle=shuffle)
        maps = dict(zip("ABCD", result.figures[1].panels, strict=True))
        for i, scores in enumerate(a09_heat_maps.matrices()):
            shown = maps[numbers(result)[f"exercise: matrix {i + 1} belongs to map"]]
            assert isinstance(shown, Heat)
            np.testing.assert_allclose(np.array(shown.values, float), softmax(scores.numpy()), atol=1e-12)


def test_A10_numbers():
    found = ran("A10", temperature=0.5)
    wanted = softmax(np.array([0.3, 1.2, -0.5, 1.0]) / 0.5)
    given = [number(found, f"weight of score {x:g} at") for x in (0.3, 1.2, -0.5, 1.0)]
    assert given == pytest.approx(wanted.tolist())
    assert number(found, "entropy") == pytest.approx(float(-(wanted * np.log(wanted)).sum()))


def test_A11_numbers():
    found = ran("A11", keys=20, gain=4.0)
    assert number(found, "weight of the key with your") == pytest.approx(math.exp(4) / (math.exp(4) + 19))


def test_A12_numbers():
    found = ran("A12", keys=7, gain=2.5)
    e = math.exp(2.5)
    assert number(found, "weight of each of the two, n = 7") == pytest.approx(e / (2 * e + 5))
    assert number(found, "weight of each of the two, n = 100, g = 1") == pytest.approx(0.026, abs=5e-4)
    for n in (10, 100, 1000):  # e^g / (2e^g + n - 2) = 0.49
        gain = numbers(found)[f"gain from which each has 0.49, n = {n}"]
        assert gain == pytest.approx(math.log(0.49 * (n - 2) / 0.02), abs=0.011)


def ratio(n: int, g: float) -> float:
    """The ratio of variances as an integral over the length of key a, without its small scatter."""
    b = np.linspace(-6.0, 8.0, 20001)
    p = np.exp(-((b - 1) ** 2))
    p /= p.sum()

    def variance(c):
        return float((((c - p @ c) ** 2).sum(1) * p).sum())

    a, other = np.zeros((len(b), n)), np.zeros((len(b), n))
    a[:, 0], other[:, 1] = g * b, g
    return variance(softmax(a + other)) / variance((softmax(a) + softmax(other)) / 2)


def test_A13_numbers():
    found = ran("A13")
    b = 1 + np.array([-1, 1]) * 1.6449 * math.sqrt(0.5)  # what 5 % are below and above
    wanted = np.exp(b) / (np.exp(b) + math.e + 8)
    assert wanted == pytest.approx([0.07, 0.45], abs=0.01)
    assert number(found, "g = 1: weight of v_a that 5 %") == pytest.approx(wanted[0], abs=0.01)
    assert number(found, "g = 1: weight of v_a that 95 %") == pytest.approx(wanted[1], abs=0.02)
    assert number(found, "g = 1: share of outputs") == 0.0
    assert number(found, "g = 20: share of outputs") > 0.8


def test_A14_numbers():
    found = ran("A14")
    for g in a13_one_head_noise.GAINS:
        (n,) = [n for n in found.numbers if n.what == f"variance of one head over that of two, g = {g:g}"]
        assert isinstance(n.ours, float)
        assert n.ours == pytest.approx(ratio(10, g), rel=0.06)
        assert n.interval is not None
        assert n.interval[0] < n.ours < n.interval[1]
    assert ratio(10, 1.0) == pytest.approx(3.5, abs=0.05)
    assert ratio(10, 20.0) == pytest.approx(19, abs=1)
    assert number(found, "g = 1: weight that head 2 gives v_b") == pytest.approx(math.e / (math.e + 9), abs=1e-3)


def test_A15_what_is_seen():
    stack, seen = a15_hard_attention.stack, a15_hard_attention.seen_from
    one = seen(stack(1, 2, 8, directed=True), 7)
    assert one.nonzero().flatten().tolist() == [4, 5, 6, 7]
    two = seen(stack(2, 1, 8, directed=True), 7)
    assert two.nonzero().flatten().tolist() == [5, 6, 7]
    assert int(seen(stack(1, 1, 8, directed=False, soft=True), 5).sum()) == 6  # causal: itself and all before
    assert number(ran("A15"), "positions seen through 3 layers, 3 heads") == 64


def test_A16_numbers():
    found = ran("A16")
    M, N, h, d = 48, 32, 4, 32
    assert number(found, "self attention: mult") == 4 * M * h * d * d + 2 * M * M * h * d
    assert number(found, "cross attention: mult") == (2 * N + 2 * M) * h * d * d + 2 * M * N * h * d
    assert number(found, "output projection alone, against M") == M * h * d * d
    assert number(found, "causal: share") == pytest.approx((N + 1) / (2 * N))


# ---- that they can fail


def wrong_normaliser(monkeypatch, change):
    real = reference.normalise
    monkeypatch.setattr(reference, "normalise", lambda scores, sinks, how, pair=None: change(real, scores, sinks, how))


def hotter(real, scores, sinks, how):
    return real(scores, sinks, replace(how, temperature=3 * how.temperature) if isinstance(how, Softmax) else how)


def over_queries(real, scores, sinks, how):
    weights, lse = real(scores.transpose(-1, -2), sinks, how)
    return weights.transpose(-1, -2), lse.new_zeros(scores.shape[:-1])


def always_soft(real, scores, sinks, how):
    return real(scores / 1e6, sinks, Softmax())


def backwards(real, scores, sinks, how):
    return real(-scores, sinks, how)


def faint(real, scores, sinks, how):
    return real(0.01 * scores, sinks, how)


@pytest.mark.parametrize(
    ("tag", "change"),
    [
        ("A8", over_queries),
        ("A9", hotter),
        ("A10", backwards),
        ("A11", faint),
        ("A12", backwards),
        ("A13", faint),
        ("A14", faint),
        ("A15", always_soft),
    ],
)
def test_a_wrong_normaliser_is_noticed(monkeypatch, tag, change):
    wrong_normaliser(monkeypatch, change)
    result = fresh(tag)
    assert result.verdict == "mixed"
    assert result.words.startswith("Not as expected")


def test_A2_a_wrong_score_is_noticed(monkeypatch):
    match = Dot.match
    monkeypatch.setattr(Dot, "match", lambda self, state, mapped: 2 * match(self, state, mapped))
    assert fresh("A2").verdict == "mixed"


def test_A4_a_missing_scale_is_noticed(monkeypatch):
    need = Scorer.need
    monkeypatch.setattr(Scorer, "need", lambda self, *args, **kw: replace(need(self, *args, **kw), scale=1.0))
    result = fresh("A4")
    assert result.verdict == "mixed"
    assert "scaled scores" in result.words


def test_A5_a_mask_that_is_off_by_one_is_noticed(monkeypatch):
    monkeypatch.setattr(Causal, "__call__", lambda self, q, k: k.order <= q.order + 1)
    assert fresh("A5").verdict == "mixed"


def test_A6_heads_in_another_order_are_noticed(monkeypatch):
    monkeypatch.setattr(grouped, "merge_heads", lambda x: merge_heads(x.flip(1)))
    assert fresh("A6").verdict == "mixed"


def test_A7_a_cache_that_does_not_shrink_is_noticed(monkeypatch):
    monkeypatch.setattr(ModelCache, "bytes", property(lambda self: 4096))
    result = fresh("A7")
    assert result.verdict == "mixed"
    assert "saves" not in result.words


def test_A16_work_that_the_formula_does_not_have_is_noticed(monkeypatch):
    project = GroupedQueryAttention.project

    def twice(self, x):
        self.qkv(x)
        return project(self, x)

    monkeypatch.setattr(GroupedQueryAttention, "project", twice)
    result = fresh("A16")
    assert result.verdict == "mixed"
    assert "cross" not in result.words


# ---- those that train


def told(tag, **given):
    """Run, and what progress said."""
    study, said = find(tag), []
    result = study.run(study.values(given), lambda share, doing: said.append((share, doing)))
    return result, said


@pytest.mark.sampled
def test_A1_without_enough_training_nothing_is_claimed():
    result, said = told("A1", steps=20, width=12)
    whole(result)
    assert result.verdict == "mixed"
    assert [share for share, _ in said] == sorted(share for share, _ in said)
    assert len(said) >= 40
    sizes = [number(result, f"parameters, {name}") for name in a01_rnn_attention.NAMES]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)
    alignment = result.figures[1].panels[0]
    assert isinstance(alignment, Heat)
    assert (len(alignment.values), len(alignment.values[0])) == (15, 15)
    assert [sum(row) for row in alignment.values] == pytest.approx([1.0] * 15, abs=1e-5)


@pytest.mark.slow
def test_A1_trained():
    result = fresh("A1", steps=1000)
    whole(result)
    assert result.verdict == "agrees"
    assert number(result, "exact answers, length 14, with attention") > 0.85
    assert number(result, "exact answers, length 14, without") < 0.1
    assert number(result, "answers that looked most at") > 0.95


def test_A3_without_enough_training_nothing_is_claimed():
    result, said = told("A3", steps=20)
    whole(result)
    assert result.verdict == "mixed"
    assert len(said) >= 20
    ours = result.figures[0].panels[1]
    assert isinstance(ours, Heat)
    assert [sum(row) for row in ours.values] == pytest.approx([1.0] * 6, abs=0.03)  # rounded, the end counted
    assert ours.y_ticks == ("je", "suis", "en", "train", "d'", "apprendre")


@pytest.mark.slow
def test_A3_trained():
    result = fresh("A3", steps=800)
    whole(result)
    assert numbers(result)["our model's translation of the sentence"] == "je suis en train d'apprendre"
    assert number(result, "sentences translated exactly") > 0.95
    for kind in ("verb", "adjective", "noun", "time"):
        assert number(result, f"looked most at their counterpart: {kind}") > 0.8
    rows = [n.agrees for n in result.numbers if n.what.startswith("most looked at by")]
    assert result.verdict == ("agrees" if all(rows) else "mixed")


# ---- the one with a real model


@pytest.mark.sampled
def test_A17_heads_of_smollm2():
    pulled("smollm2")
    result = fresh("A17", tokens=64)
    whole(result)
    assert result.verdict == "agrees"
    assert number(result, "heads on the token before") >= 2
    assert number(result, "clearest: what came after last time") > 0.3
    assert len(result.figures[1].panels) >= 3


def test_A17_a_model_without_training_is_noticed(monkeypatch):
    pulled("smollm2")
    real = smollm2()
    model = build(decoder(vocab=real.spec.vocab, width=32, layers=2, heads=4)).eval()
    model.tokenizer = real.tokenizer
    monkeypatch.setattr(a17_head_atlas, "smollm2", lambda: model)
    result = fresh("A17", tokens=64)
    assert result.verdict == "mixed"
    assert len(result.figures) == 1
    assert torch.is_inference_mode_enabled() is False
