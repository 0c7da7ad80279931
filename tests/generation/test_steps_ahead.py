"""Steps on a CPU without Python in between: the tokens that come step by step, whoever else is there."""

from __future__ import annotations

import time

import pytest
import torch

import vantage as vt
from vantage.errors import BadInput
from vantage.generation.engine import Engine
from vantage.generation.run_ahead import RunAhead
from vantage.generation.stops import Stop
from vantage.kernels.native import native
from vantage.model.lowered.run import Lowered
from vantage.model.packed import quantise
from vantage.spec.sampling import RowChoice, Sampling

pytestmark = pytest.mark.skipif(native() is None, reason="needs the native kernels")
MODELS = {
    "rope": {"position": "rope", "kv_heads": 2},
    "alibi": {"position": "alibi"},
    "window": {"position": "rope", "window": 24},
    "none": {"position": "none"},
    "xpos": {"position": "xpos"},
}
CHOICES = {
    "greedy": {},
    "temperature": {"temperature": 1.0, "seed": 3},
    "hot": {"temperature": 3.0, "seed": 4},
    "top-p": {"temperature": 0.8, "top_p": 0.9, "seed": 5},
    "top-k": {"temperature": 1.5, "top_k": 7, "seed": 6},
    "min-p": {"temperature": 1.2, "min_p": 0.05, "seed": 7},
    "all": {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "seed": 8},
}
PROMPTS = [[1, 2, 3, 4, 5], [7] * 30, [9, 8, 7, 6, 5, 4, 3, 2, 1], list(range(60))]


def model_of(name: str, bits: int | None = 8, **options) -> vt.Model:
    spec = vt.decoder(vocab=211, width=64, layers=2, heads=4, **(MODELS[name] | options))
    model = vt.build(spec, seed=1).eval()
    if bits is not None:
        quantise(model, bits)
    return model


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, int]]:
    """(rows, steps) of every call that was run ahead."""
    seen: list[tuple[int, int]] = []
    ahead = Lowered.ahead

    def spy(self, tokens, caches, steps, choices):
        done = ahead(self, tokens, caches, steps, choices)
        if done is not None:
            seen.append((len(caches), steps))
        return done

    monkeypatch.setattr(Lowered, "ahead", spy)
    return seen


def step_by_step(model, monkeypatch, *args, **kwargs):
    with monkeypatch.context() as patch:
        patch.setattr(RunAhead, "next", lambda self, samples: None)
        return vt.generate(model, *args, **kwargs)


@pytest.mark.sampled
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_tokens_as_step_by_step(name, choice, calls, monkeypatch):
    model = model_of(name)
    got = vt.generate(model, PROMPTS, max_tokens=40, **choice)
    assert any(steps > 1 for _, steps in calls)
    # each alone: rows of unequal length are one pass of torch's under ALiBi, whose roundings are others
    want = [step_by_step(model, monkeypatch, prompt, max_tokens=40, **choice) for prompt in PROMPTS]
    assert [answer.tokens for answer in got] == [answer.tokens for answer in want]


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("kept", ["auto", "int8", None])
def test_weights_and_caches_of_every_form(bits, kept, calls, monkeypatch):
    model = model_of("rope", bits)
    model.kv_dtype = kept
    got = vt.generate(model, PROMPTS[0], max_tokens=30)
    assert calls
    assert got.tokens == step_by_step(model, monkeypatch, PROMPTS[0], max_tokens=30).tokens


@torch.inference_mode()
def test_log_probabilities_are_the_models_own(calls):
    model, prompt = model_of("rope"), PROMPTS[0]
    engine = Engine(model)
    request = engine.submit(prompt, max_tokens=12, sampling=Sampling(temperature=0.7, seed=1))
    engine.run()
    assert calls
    picks = request.outputs[0].picks
    logits = model(torch.tensor([[*prompt, *(pick.token for pick in picks)]]))[0].log_softmax(-1)
    want = [float(logits[len(prompt) - 1 + i, pick.token]) for i, pick in enumerate(picks)]
    assert [pick.logprob for pick in picks] == pytest.approx(want, abs=2e-5)


def test_what_was_computed_past_the_end_is_taken_back(calls, monkeypatch):
    """A stop token in the middle of a call ends the answer, and the row goes on as if nothing had followed."""
    model = model_of("rope")
    long = vt.generate(model, PROMPTS[2], max_tokens=30, temperature=1.0, seed=5).tokens
    stop = long[9]
    end = long.index(stop)
    calls.clear()
    engine = Engine(model)
    for _ in range(2):  # the second request finds the first one's prefix
        request = engine.submit(
            PROMPTS[2],
            max_tokens=30,
            sampling=Sampling(temperature=1.0, seed=5),
            stop=Stop.of(stop),
        )
        engine.run()
        assert request.outputs[0].finish == "stop"
        assert [pick.token for pick in request.outputs[0].picks] == list(long[: end + 1])
    assert calls


def test_rows_that_come_and_go(calls, monkeypatch):
    model = model_of("window")
    texts = [[(11 * i + 3 * j) % 211 for i in range(5 + 7 * j)] for j in range(6)]
    lengths = [3, 17, 40, 9, 1, 25]
    engine, requests = Engine(model, rows=4), []
    for text, most in zip(texts, lengths, strict=True):
        requests.append(engine.submit(text, max_tokens=most, sampling=Sampling(temperature=0.9, seed=most)))
        engine.step()
    engine.cancel(requests[2])
    engine.run()
    assert any(rows > 1 for rows, _ in calls)
    for i, (text, most, request) in enumerate(zip(texts, lengths, requests, strict=True)):
        alone = step_by_step(model, monkeypatch, text, max_tokens=most, temperature=0.9, seed=most).tokens
        mine = tuple(pick.token for pick in request.outputs[0].picks)
        assert mine == alone[: len(mine)]
        assert i == 2 or len(mine) == most


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.2}, {"logit_bias": {3: 2.0}}, {"logprobs": 2}])
def test_what_needs_the_last_token_first_goes_step_by_step(options, calls):
    vt.generate(model_of("rope"), PROMPTS[0], max_tokens=10, **options)
    assert not calls


def test_what_adds_its_position_to_the_embedding_goes_step_by_step(calls):
    model = vt.build(vt.decoder(vocab=211, width=64, layers=2, heads=4, position="learned", max_length=64)).eval()
    vt.generate(model, PROMPTS[0], max_tokens=10)
    assert not calls


def test_somebody_who_waits_for_every_call_is_called(calls):
    model, seen = model_of("rope"), []
    hook = model.register_forward_hook(lambda *_: seen.append(1))
    vt.generate(model, PROMPTS[0], max_tokens=10)
    assert not calls
    assert len(seen) >= 9
    hook.remove()
    vt.generate(model, PROMPTS[0], max_tokens=10)
    assert calls


def test_a_text_ends_with_the_declared_length(calls):
    """Steps never cross the length that frequencies depend on."""
    scaled = vt.Rope(scaling=vt.scaling.DynamicNTK(factor=2.0, original=32))
    model = vt.build(vt.decoder(vocab=211, width=64, layers=2, heads=4, position=scaled)).eval()
    quantise(model, 8)
    got = vt.generate(model, PROMPTS[0], max_tokens=80)
    assert len(got.tokens) == 80
    assert calls


@torch.inference_mode()
def test_steps_never_cross_the_last_position_of_a_rotation():
    xpos = vt.XPos(scale_base=0.5)
    model = model_of("xpos", None, position=xpos)
    cache, last = model.new_cache(), xpos.last_position(torch.float32)
    model(torch.tensor([[*range(last)]]), cache=cache)
    greedy = RowChoice(0.0, 0, 1.0, 0.0, ())
    assert model.steps_ahead([1], [cache], 2, [greedy]) is None
    assert cache.tokens == (last,)
    assert model.steps_ahead([1], [cache], 1, [greedy]) is not None
    with pytest.raises(BadInput, match=f"position {last + 1} is past {last}"):
        model(torch.tensor([[1]]), cache=cache)


@torch.inference_mode()
def test_logits_that_are_no_numbers_are_noticed():
    model = model_of("rope", None)
    cache = model.new_cache()
    model(torch.tensor([PROMPTS[0]]), cache=cache)
    model.head.linear.weight[5, 3] = float("nan")
    done = model.steps_ahead([1], [cache], 2, [RowChoice(0.0, 0, 1.0, 0.0, ())])
    assert done is not None
    assert done.read().fine == [[False], [False]]


def test_rows_with_buffers_of_their_own_are_refused_together():
    model = model_of("rope")
    caches = [model.new_cache() for _ in range(2)]
    with torch.inference_mode():
        for cache in caches:
            model(torch.tensor([PROMPTS[0]]), cache=cache)
        choice = RowChoice(0.0, 0, 1.0, 0.0, ())
        assert model.steps_ahead([1, 2], caches, 3, [choice, choice]) is None
        assert [cache.tokens for cache in caches] == [(5,), (5,)]
        done = model.steps_ahead([1], caches[:1], 3, [choice])
        assert done is not None
        assert caches[0].tokens == (8,)
        tokens = [row[0] for row in done.read().tokens]
        whole = model(torch.tensor([[*PROMPTS[0], 1, *tokens]]))[0, 5:-1].argmax(-1).tolist()
    assert tokens == whole


def test_their_time_is_counted_as_decoding(monkeypatch):
    ahead, waited = Lowered.ahead, 0.05

    def slower(self, tokens, caches, steps, choices):
        time.sleep(waited)
        return ahead(self, tokens, caches, steps, choices)

    monkeypatch.setattr(Lowered, "ahead", slower)
    answer = vt.generate(model_of("rope"), PROMPTS[0], max_tokens=8, stats=True)
    assert answer.stats.milliseconds["decode"] >= 1e3 * waited
