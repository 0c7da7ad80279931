"""A prompt's own log-probabilities: those of one plain pass, however the prompt is cut, shared or put back."""

from __future__ import annotations

import pytest
import torch

from tests.generation import zoo
from tests.generation.scenario import own
from vantage.errors import BadInput
from vantage.generation import Engine, Sampling
from vantage.generation.limits import GenerationLimits

EVERY = pytest.mark.parametrize("kind", [kind for kind in zoo.MODELS if kind != "encoder-decoder"])


def prompt(n: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(zoo.tokens(n, seed=seed)[0].tolist())


@torch.inference_mode()
def plain(model, tokens) -> torch.Tensor:
    """Log-probabilities (T, V) of what follows each token, in one pass without a cache."""
    length = GenerationLimits.of(model).declared(len(tokens) + 1)
    return torch.log_softmax(model(torch.tensor([tokens]), length=length)[0].double(), -1)


def check(model, request, top: int) -> None:
    tokens, wanted = request.tokens, plain(model, request.tokens)
    first, *picks = request.prompt_picks
    assert first is None
    assert [pick.token for pick in picks] == list(tokens[1:])
    for i, pick in enumerate(picks):
        assert pick.logprob == pytest.approx(float(wanted[i, pick.token]), abs=1e-6)
        best = wanted[i].topk(top).values.tolist()
        assert [value for _, value in pick.top] == pytest.approx(best, abs=1e-6)
        assert all(value == pytest.approx(float(wanted[i, token]), abs=1e-6) for token, value in pick.top)


@EVERY
@pytest.mark.parametrize("chunk", [1, 7, 256])
def test_equal_to_one_pass(kind, chunk):
    model = own(kind)
    engine = Engine(model, block=4, chunk=chunk)
    requests = [
        engine.submit(prompt(n, seed=n), max_tokens=m, prompt_logprobs=3) for n, m in ((1, 2), (9, 0), (23, 4), (30, 0))
    ]
    engine.run()
    for request in requests:
        check(model, request, 3)
        assert len(request.outputs[0].picks) == (request.max_tokens or 0)
        assert request.outputs[0].finish == "length"
    assert engine.idle


def test_a_shared_prefix_is_computed_again_and_then_serves_others():
    """Its keys are known, but not what each of its tokens was given for a probability."""
    model = own("plain")
    engine = Engine(model, block=4, chunk=8)
    tokens = prompt(24)
    engine.submit(tokens, max_tokens=2)
    engine.run()
    scored = engine.submit(tokens, max_tokens=0, prompt_logprobs=0)
    engine.run()
    check(model, scored, 0)
    assert scored.prefix == (0, "not sought")
    after = engine.submit(tokens, max_tokens=1)
    engine.run()
    assert after.prefix.tokens >= 20


def test_put_back_and_computed_again():
    """A request that makes room for others has its scores once, and the right ones."""
    model = own("plain")
    engine = Engine(model, capacity=64, block=4, chunk=8, share_prefixes=False)
    asked = [engine.submit(prompt(12, seed=i), max_tokens=20, prompt_logprobs=1, priority=i) for i in range(4)]
    engine.run()
    assert engine.stats.preemptions > 0
    for request in asked:
        check(model, request, 1)


def test_samples_share_the_scores_and_batch_invariance_keeps_them():
    model = own("plain", dtype=torch.float32)
    engine = Engine(model, block=4, chunk=8, batch_invariant=True)
    one = engine.submit(prompt(13), max_tokens=3, n=3, sampling=Sampling(temperature=1.0, seed=1), prompt_logprobs=2)
    two = engine.submit(prompt(13), max_tokens=0, n=2, prompt_logprobs=2)
    engine.run()
    assert one.prompt_picks == two.prompt_picks
    assert [output.finish for output in two.outputs] == ["length", "length"]
    assert [len(output.picks) for output in one.outputs] == [3, 3, 3]


def test_what_is_refused():
    with pytest.raises(BadInput, match="max_tokens=0: give at least 1"):
        Engine(own("plain")).submit(prompt(3), max_tokens=0)
    with pytest.raises(BadInput, match="max_tokens=-1: give at least 0"):
        Engine(own("plain")).submit(prompt(3), max_tokens=-1, prompt_logprobs=0)
    with pytest.raises(BadInput, match="an encoder"):
        Engine(own("encoder-decoder")).submit(prompt(3), max_tokens=1, source=(1, 2), prompt_logprobs=0)
