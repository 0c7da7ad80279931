"""Sampling: every filter against transformers' own, drawn tokens against the distribution, bad values refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from vantage.errors import BadInput, Refused
from vantage.generation import Picker, Sampling
from vantage.generation.sampling import uniform

V = 40
PROMPT = [3, 5, 5, 7]


def logits(seed=0, vocab=V, scale=2.0, dtype=torch.float64):
    return scale * torch.randn(vocab, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def picker(vocab=V, prompt=PROMPT, **options):
    return Picker(Sampling(**options), prompt, vocab=vocab)


# ---- each filter against transformers'


def theirs(x, *, temperature=1.0, top_k=None, top_p=None, min_p=None, repetition_penalty=1.0, seen=()):
    """The probabilities that transformers would draw from, with its processors in its order."""
    steps = []
    if repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(repetition_penalty))
    steps.append(TemperatureLogitsWarper(temperature))
    steps += [TopKLogitsWarper(top_k)] if top_k is not None else []
    steps += [TopPLogitsWarper(top_p)] if top_p is not None else []
    steps += [MinPLogitsWarper(min_p)] if min_p is not None else []
    scores, told = x[None], torch.tensor([list(seen)], dtype=torch.long)
    for step in steps:
        scores = step(told, scores)
    return scores[0].softmax(-1)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.9, "top_k": 5},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "top_p": 1e-6},
        {"temperature": 1.3, "min_p": 0.1},
        {"temperature": 1.3, "min_p": 1.0},
        {"temperature": 0.8, "repetition_penalty": 1.7},
        {"temperature": 0.8, "repetition_penalty": 0.6},
        {"temperature": 1.1, "top_k": 12, "top_p": 0.7, "min_p": 0.05, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_distributions_are_those_of_transformers(options):
    for seed in range(8):
        mine = picker(**options)
        mine.took(11)
        got, wanted = mine.distribution(logits(seed)), theirs(logits(seed), seen=[*PROMPT, 11], **options)
        assert torch.equal(got > 0, wanted > 0)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


@given(
    seed=st.integers(0, 99),
    top_k=st.none() | st.integers(1, 50),
    top_p=st.none() | st.floats(0.05, 1.0),
    min_p=st.none() | st.floats(0.0, 1.0),
    temperature=st.floats(0.2, 3.0),
)
def test_any_filters_together_are_those_of_transformers(seed, top_k, top_p, min_p, temperature):
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    got, wanted = picker(**options).distribution(logits(seed)), theirs(logits(seed), **options)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


def test_presence_and_frequency_count_the_output_only():
    mine = picker(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25)
    for token in (4, 9, 9):
        mine.took(token)
    x = logits()
    x[4] -= 0.75
    x[9] -= 1.0
    torch.testing.assert_close(mine.distribution(logits()), x.softmax(-1))


def test_bias_adds_and_forbids():
    mine = picker(temperature=1.0, logit_bias={2: 1.5, 6: -math.inf})
    x = logits()
    x[2] += 1.5
    x[6] = -math.inf
    torch.testing.assert_close(mine.distribution(logits()), x.softmax(-1))
    assert hash(Sampling(logit_bias={2: 1.5, 1: 0.0})) == hash(Sampling(logit_bias=((1, 0.0), (2, 1.5))))


def test_logits_are_left_as_they_were():
    x = logits()
    everything = picker(temperature=1, repetition_penalty=2, presence_penalty=1, logit_bias={1: 3.0}, top_k=3)
    everything.took(4)
    everything.pick(x)
    assert torch.equal(x, logits())


# ---- drawing


def chi_square(counts, p):
    """Pearson's statistic and its 1 - 1e-5 quantile (Wilson and Hilferty; 4.265 is the normal one).

    Draws are a function of the seed, so a comparison either always holds or never.
    """
    wanted = counts.sum() * p[p > 0]
    degrees = len(wanted) - 1
    quantile = degrees * (1 - 2 / (9 * degrees) + 4.265 * math.sqrt(2 / (9 * degrees))) ** 3
    return float(((counts[p > 0] - wanted) ** 2 / wanted).sum()), quantile


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 7},
        {"top_p": 0.9},
        {"min_p": 0.02},
        {"top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.3},
        {"presence_penalty": 0.4, "frequency_penalty": 0.2, "logit_bias": {1: 2.0, 2: -math.inf}},
    ],
    ids=str,
)
def test_drawn_tokens_pass_a_chi_square_test(options):
    draws, x = 2000, logits(scale=1.0)
    counts = torch.zeros(V, dtype=torch.float64)
    for seed in range(draws):
        mine = picker(temperature=1.2, seed=seed, **options)
        mine.took(8)
        counts[mine.pick(x).token] += 1
    p = mine.distribution(x)
    assert not counts[p == 0].any()
    statistic, quantile = chi_square(counts, p)
    assert statistic < quantile
    wrong, quantile = chi_square(counts, x.softmax(-1))  # the test can fail: this is another distribution
    assert wrong > quantile


def test_steps_of_one_seed_are_independent_draws():
    draws, x = 2000, logits(scale=1.0)
    mine, counts = picker(temperature=1.0, seed=5), torch.zeros(V, dtype=torch.float64)
    for _ in range(draws):
        token = mine.pick(x).token
        counts[token] += 1
        mine.took(token)
    statistic, quantile = chi_square(counts, x.softmax(-1))
    assert statistic < quantile


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 9.0])  # flat, as it is, steep, steeper
@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 700}, {"top_k": 3}, {"top_p": 0.97}, {"min_p": 1e-3}, {"top_k": 700, "top_p": 0.97}],
    ids=str,
)
def test_ranking_only_the_best_first_changes_nothing(options, scale):
    """Over a large vocabulary the draw is the inverse CDF over the whole order."""
    vocab = 2500
    x = logits(1, vocab, scale=scale)
    x[:1000] = x[0]  # ties: by id
    x[1000:1100] = -math.inf
    for seed in range(80):
        mine = picker(vocab, temperature=1.0, seed=seed, **options)
        p = mine.distribution(x)
        order = p.sort(descending=True, stable=True).indices
        at = int((p[order].cumsum(0) <= uniform(seed, 0, 0)).sum())
        assert mine.pick(x).token == order[at]


def test_the_random_number_depends_on_seed_sample_and_step_alone():
    seen = {uniform(seed, sample, step) for seed in range(9) for sample in range(9) for step in range(9)}
    assert len(seen) == 9**3
    assert all(0 <= u < 1 for u in seen)
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    a, b = picker(temperature=1.0, seed=4), picker(temperature=1.0, seed=4)
    a.took(1)
    b.took(2)
    assert a.pick(logits(3)) == b.pick(logits(3))
    assert a.pick(logits(3)) == a.pick(logits(3))  # choosing does not advance


def test_a_seed_is_drawn_and_said():
    a, b = picker(temperature=1.0), picker(temperature=1.0)
    assert a.seed != b.seed
    again = picker(temperature=1.0, seed=a.seed)
    assert [a.pick(logits(i)).token for i in range(20)] == [again.pick(logits(i)).token for i in range(20)]


# ---- greedy and log-probabilities


def test_greedy_takes_the_best_and_the_lower_of_two():
    x = torch.tensor([0.0, 3.0, 1.0, 3.0])
    mine = picker(4, [0])
    assert mine.pick(x).token == 1
    assert mine.distribution(x).tolist() == [0, 1, 0, 0]
    assert picker(4, [1], repetition_penalty=2.0).pick(x).token == 3


def test_logprobs_are_the_models_own():
    x = logits()
    wanted = x.log_softmax(-1)
    got = picker(temperature=0.5, top_k=2, repetition_penalty=3.0, logit_bias={0: 50.0}, logprobs=3).pick(x)
    assert got.token == 0
    assert got.logprob == pytest.approx(float(wanted[0]))
    best = wanted.sort(descending=True)
    assert [token for token, _ in got.top] == best.indices[:3].tolist()
    assert [value for _, value in got.top] == pytest.approx(best.values[:3].tolist())
    assert picker(logprobs=0).pick(x).top == ()


# ---- constraints


class Only:
    """Allows some tokens."""

    def __init__(self, *tokens):
        self.tokens, self.taken = tokens, []

    def allow(self, logits_V):
        keep = logits_V[list(self.tokens)].clone()
        logits_V.fill_(-math.inf)
        logits_V[list(self.tokens)] = keep

    def take(self, token):
        self.taken.append(token)

    def done(self):
        return False


def test_a_constraint_is_asked_and_told():
    only = Only(2, 5)
    mine = Picker(Sampling(temperature=1.0, seed=0), PROMPT, vocab=V, constraint=only)
    assert mine.distribution(logits()).nonzero()[:, 0].tolist() == [2, 5]
    token = mine.pick(logits()).token
    assert token in (2, 5)
    assert only.taken == []
    mine.took(token)
    assert only.taken == [token]


def test_nothing_left_to_choose_is_refused():
    mine = Picker(Sampling(logit_bias={2: -math.inf}), PROMPT, vocab=V, constraint=Only(2))
    with pytest.raises(Refused, match="no token is left"):
        mine.pick(logits())
    broken = logits()
    broken[7] = math.nan
    with pytest.raises(Refused, match="NaN"):
        picker().pick(broken)
    with pytest.raises(Refused, match="infinite"):
        picker().pick(torch.full((V,), math.inf))


# ---- bad values


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -0.1}, "temperature=-0.1: give 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"top_k": 0}, "top_k=0: give at least 1"),
        ({"top_k": 2.5}, "top_k=2.5"),
        ({"top_k": True}, "top_k=True"),
        ({"top_p": 0.0}, "top_p=0.0: give a share above 0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"min_p": -0.1}, "min_p=-0.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"presence_penalty": math.inf}, "presence_penalty=inf"),
        ({"frequency_penalty": math.nan}, "frequency_penalty=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed="),
        ({"logprobs": -1}, "logprobs=-1"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias=-1"),
        ({"logit_bias": {1: math.inf}}, "logit_bias=inf"),
        ({"logit_bias": {1: math.nan}}, "logit_bias=nan"),
    ],
    ids=str,
)
def test_bad_values_are_refused(options, says):
    with pytest.raises(BadInput, match=says):
        Sampling(**options)


def test_what_the_vocabulary_does_not_hold_is_refused():
    with pytest.raises(BadInput, match="logit_bias names token 40"):
        picker(logit_bias={V: 1.0})
    with pytest.raises(BadInput, match="the prompt names token 99"):
        picker(prompt=[99])
    with pytest.raises(BadInput, match=r"logits of shape \(39,\)"):
        picker().pick(logits(vocab=V - 1))
