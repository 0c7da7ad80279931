"""How many steps go between two chunks of prompts, and what a device that runs by itself changes of a step."""

import pytest
import torch

import vantage as vt
from tests.kernels.fused_calls import MISSING
from vantage.generation.chunks import FEW, MOST, Pace, default_chunk
from vantage.generation.engine import Engine
from vantage.generation.forward_passes import ForwardPasses
from vantage.generation.run_ahead import RunAhead
from vantage.model.lowered.steps import WholeSteps


def test_a_chunk_at_most_doubles_the_time_of_a_token():
    pace = Pace()
    assert pace.steps == FEW, "nothing is known yet"
    for _ in range(40):  # steps of 2 ms, and 14 ms of other work between two launches
        pace.note(0.002 * pace.steps + 0.014, pace.steps, 0.002 * pace.steps)
    assert pace.steps == 7
    assert 0.002 * pace.steps + 0.014 <= 2 * 0.002 * pace.steps
    for _ in range(40):
        pace.note(0.002 * pace.steps + 0.100, pace.steps, 0.002 * pace.steps)
    assert pace.steps == MOST
    for _ in range(60):
        pace.note(0.002 * pace.steps + 0.001, pace.steps, 0.002 * pace.steps)
    assert pace.steps == FEW


def test_chunks_are_larger_on_a_gpu():
    assert default_chunk(torch.device("cpu")) == 256
    assert default_chunk(torch.device("cuda")) > 256


@pytest.fixture
def read_late(monkeypatch):
    """As on a GPU: prompts are launched before what was decoded is read, and first tokens are chosen last."""
    monkeypatch.setattr(ForwardPasses, "asynchronous", property(lambda self: True))
    monkeypatch.setattr(RunAhead, "next", lambda self, samples: self._of(samples) or self._launch(samples, None))


PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 8, 7], [5] * 20, [2, 4, 6]]


def answers(n=1):
    model = vt.build(vt.decoder(vocab=61, width=32, layers=2, heads=2, position="rope"), seed=1).eval()
    engine = Engine(model, rows=4, chunk=8, capacity=160, block=4)
    requests = []
    for prompt in PROMPTS:
        requests.append(engine.submit(prompt, max_tokens=12, n=n))
        engine.step()
    engine.run()
    return engine, [[output.tokens for output in request.outputs] for request in requests]


def test_reading_late_changes_no_token(read_late, monkeypatch):
    _, late = answers()
    monkeypatch.undo()
    assert late == answers()[1]


def test_an_interrupt_between_a_prompt_and_its_first_token(read_late, monkeypatch):
    """The prompt's last token is computed again, and every sample gets its row."""
    model = vt.build(vt.decoder(vocab=61, width=32, layers=2, heads=2, position="rope"), seed=1).eval()
    engine = Engine(model, rows=4, chunk=32)
    request = engine.submit(PROMPTS[0], max_tokens=6, n=2)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_begin_answer", lambda self, sample, logits: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    engine.run()
    want = vt.generate(model, PROMPTS[0], max_tokens=6, ends=False).tokens
    assert [tuple(output.tokens) for output in request.outputs] == [want, want]
    engine.forget()
    assert engine.stats.blocks_used == 0


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """A GPU's steps, interpreted: three at a time, the next three launched before these are read."""

    def runs(self, model):
        if self._gpu is None:
            self._lower_for_gpu(model)
        return True

    monkeypatch.setattr(WholeSteps, "runs_on_gpu", runs)
    monkeypatch.setattr(ForwardPasses, "asynchronous", property(lambda self: True))
    monkeypatch.setattr("vantage.generation.forward_passes._on_device", lambda tokens, device: torch.tensor(tokens))
    monkeypatch.setattr("vantage.generation.run_ahead.MOST", 3)


@pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
def test_steps_of_one_pass_stay_while_another_is_launched(as_on_a_gpu):
    """Batch-invariant rows are a pass each: what follows the first one's steps is under way while none of them is read,
    and the second one's are launched."""
    model = vt.build(vt.decoder(vocab=61, width=32, layers=1, heads=2, position="lerope"), seed=1).eval()
    options = {"max_tokens": 12, "batch_invariant": True, "logprobs": 0, "stats": True}
    together = vt.generate(model, PROMPTS[:3], **options)
    assert together[0].stats.paths["graph of modules"] > 30
    alone = [vt.generate(model, prompt, **options) for prompt in PROMPTS[:3]]
    assert [answer.logprobs for answer in together] == [answer.logprobs for answer in alone]


@pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
def test_passes_of_several_adapters(as_on_a_gpu):
    """One of them ends while steps that go on from its last ones are under way."""
    model = vt.build(vt.decoder(vocab=61, width=32, layers=1, heads=2, position="lerope"), seed=1).eval()
    engine = Engine(model, rows=4, chunk=32, adapters={"same": model})
    ends, adapters = (12, 7), (None, "same")
    rows = zip(PROMPTS, ends, adapters, strict=False)
    requests = [engine.submit(prompt, max_tokens=n, adapter=adapter) for prompt, n, adapter in rows]
    engine.run()
    for request, prompt, n in zip(requests, PROMPTS, ends, strict=False):
        assert tuple(request.outputs[0].tokens) == vt.generate(model, prompt, max_tokens=n, ends=False).tokens
    engine.forget()
    assert engine.stats.blocks_used == 0
