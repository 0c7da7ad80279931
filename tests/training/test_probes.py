"""Linear probes: they find what is there, and nothing where there is nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vantage.errors import BadInput
from vantage.model.recurrent import RecurrentSpec, build_recurrent
from vantage.training.batch import IGNORE, Batch
from vantage.training.probes import PENALTIES, decoder_count, encoder_position, probe


def sequences(n=40, longest=9, width=6, seed=0):
    """States of sequences of different lengths: (N, D), the step of each, and which sequence it is of."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, longest + 1, n)
    groups = np.repeat(np.arange(n), lengths)
    steps = np.concatenate([np.arange(length) for length in lengths])
    return rng.normal(size=(len(groups), width)), steps, groups


def test_a_linear_trace_is_found():
    states, steps, groups = sequences()
    direction = np.array([1.0, -2.0, 0.0, 0.5, 3.0, 0.0])
    states = states - np.outer(states @ direction, direction) / (direction @ direction) + np.outer(steps, direction)
    found = probe(states, steps, groups)
    assert found.r2 > 0.999
    assert found.interval[0] > 0.999
    assert abs(found.shuffled) < 0.15
    assert found.sequences == 40
    np.testing.assert_allclose(found(states), steps, atol=0.1)


def test_nothing_is_found_in_noise():
    states, steps, groups = sequences(n=60, width=12)
    found = probe(states, steps, groups)
    assert -0.15 < found.r2 < 0.1
    assert found.interval[0] < 0.05


def test_what_sets_sequences_apart_does_not_help():
    """A mark of each sequence explains targets that go by sequence, if the split is by states. Here it is not."""
    n = 50
    groups = np.repeat(np.arange(n), 6)
    target = np.random.default_rng(1).normal(size=n)[groups]
    assert probe(np.eye(n)[groups], target, groups).r2 < 0.05


def test_noise_of_a_known_size_gives_the_r2_it_should():
    states, _, groups = sequences(n=400, width=4)
    rng = np.random.default_rng(3)
    target = states @ np.array([1.0, 1.0, 0.0, 0.0]) + rng.normal(scale=np.sqrt(2.0), size=len(states))
    found = probe(states, target, groups)  # half of the variance is noise
    assert found.interval[0] < 0.5 < found.interval[1]
    assert 0.02 < found.interval[1] - found.interval[0] < 0.15
    assert found.interval[0] < found.r2 < found.interval[1]


def test_the_interval_covers_as_often_as_it_says():
    """Half of the variance is noise, so R² is 1/2, less the little that fitting costs."""
    hits = 0
    for seed in range(40):
        states, _, groups = sequences(n=120, width=2, seed=seed)
        target = states[:, 0] + np.random.default_rng(seed + 1000).normal(size=len(states))
        low, high = probe(states, target, groups, seed=seed).interval
        hits += low < 0.5 < high
    assert hits >= 34  # 38 on average


@settings(max_examples=10)
@given(st.integers(0, 99), st.floats(0.1, 50), st.floats(-30, 30))
def test_scale_and_shift_do_not_matter(seed, scale, shift):
    states, steps, groups = sequences(n=20, seed=seed)
    states[:, 0] += steps
    plain, other = probe(states, steps, groups), probe(states * scale + shift, 3 * steps + 7, groups)
    assert other.r2 == pytest.approx(plain.r2, abs=1e-6)
    np.testing.assert_allclose(other.weights * scale, 3 * plain.weights, rtol=1e-4, atol=1e-7)


def test_ridge_is_the_closed_form():
    states, steps, groups = sequences(n=30)
    states[:, 0] += steps
    found = probe(states, steps, groups)
    assert found.penalty in PENALTIES
    z = (states - states.mean(0)) / states.std(0)
    matrix = z.T @ z + found.penalty * len(z) * np.eye(6)
    wanted = np.linalg.solve(matrix, z.T @ (steps - steps.mean())) / states.std(0)
    np.testing.assert_allclose(found.weights, wanted, rtol=1e-8)
    assert found.bias == pytest.approx(steps.mean() - states.mean(0) @ wanted)


def test_the_same_seed_gives_the_same_probe_and_dead_units_do_no_harm():
    states, steps, groups = sequences()
    states[:, 0] += steps
    dead = np.concatenate([states, np.full((len(states), 2), 3.0)], 1)
    first, again, with_dead = probe(states, steps, groups), probe(states, steps, groups), probe(dead, steps, groups)
    assert first.r2 == again.r2
    assert first.interval == again.interval
    assert with_dead.r2 == pytest.approx(first.r2)
    assert with_dead.weights[-2:].tolist() == [0.0, 0.0]
    assert f"{first.r2:.3f}" in str(first)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y, g: (x, y[:-1], g), r"targets \(\d+,\)"),
        (lambda x, y, g: (x[0], y, g), "one row a state"),
        (lambda x, y, g: (x * np.nan, y, g), "not finite"),
        (lambda x, y, g: (x, y, g // 10), "states of 4 sequences: give at least 10"),
        (lambda x, y, g: (x[:0], y[:0], g[:0]), "states of 0 sequences"),
        (lambda x, y, g: (x, y * 0, g), "nothing to explain"),
    ],
)
def test_bad_input_is_refused(change, says):
    states, steps, groups = sequences()
    with pytest.raises(BadInput, match=says):
        probe(*change(states, steps.astype(float), groups))


# ---- of a model

WIDTH = 4


def counting_model():
    """An RNN whose first unit counts: h = tanh(h + 0.01), in the encoder and, from where that ended, the decoder."""
    model = build_recurrent(RecurrentSpec(7, WIDTH, cell="rnn", dropout=0.3), seed=0)
    with torch.no_grad():
        for net in (model.encoder.net.net, model.decoder.net.net):
            net.weight_hh_l0[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
            net.weight_ih_l0[0] = 0.0
            net.bias_ih_l0[0], net.bias_hh_l0[0] = 0.01, 0.0
    return model


def batches(n=3, rows=20, length=None, seed=0):
    """Sources of 3 to 8 tokens (or all of one length), and as many to say, one of padding before what is asked."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        lengths = torch.randint(3, 9, (rows, 1), generator=generator) if length is None else torch.tensor([[length]])
        mask = (torch.arange(8)[None] < lengths).expand(rows, 8)
        source, tokens = (torch.randint(7, (rows, 8), generator=generator) for _ in range(2))
        yield Batch(tokens, tokens.masked_fill(~mask, IGNORE), source=source, source_mask=mask)


def test_a_model_that_counts_is_found_out():
    model = counting_model().train()
    position = encoder_position(model, batches())
    assert position.r2 > 0.98
    assert position.sequences == 60
    assert model.training  # as it was
    assert decoder_count(model, batches(length=6)).step.r2 > 0.98


def test_a_model_whose_states_are_stuck_is_found_out_too():
    model = counting_model()
    with torch.no_grad():
        for net in (model.encoder.net.net, model.decoder.net.net):
            net.weight_hh_l0.zero_()  # nothing of the step before is left
    assert encoder_position(model, batches()).r2 < 0.05
    assert decoder_count(model, batches()).step.r2 < 0.05


def test_steps_and_what_remains_are_those_of_what_is_asked():
    """With equal lengths one is the other, mirrored; with different ones the decoder that only counts cannot know."""
    model = counting_model()
    equal = decoder_count(model, batches(length=6))
    np.testing.assert_allclose(equal.step.weights, -equal.remaining.weights, rtol=1e-6, atol=1e-9)
    assert equal.step.bias + equal.remaining.bias == pytest.approx(5.0)
    assert equal.remaining.r2 == pytest.approx(equal.step.r2, abs=1e-6)
    with torch.no_grad():
        model.encoder.net.net.bias_ih_l0[0] = 0.0  # the encoder tells it no length
    mixed = decoder_count(model, batches())
    assert mixed.step.r2 > 0.98
    assert mixed.remaining.r2 < 0.8


def test_probes_refuse_what_they_cannot_read():
    model = counting_model()
    plain = next(iter(batches()))
    with pytest.raises(BadInput, match="no batches"):
        encoder_position(model, [])
    with pytest.raises(BadInput, match="without a source"):
        encoder_position(model, [Batch(plain.tokens, plain.targets)])
    with pytest.raises(BadInput, match="one for each token"):
        decoder_count(model, [Batch(plain.tokens, plain.targets[:, 0], source=plain.source)])
