"""How many steps go between two chunks of prompts, and what a device that runs by itself changes of a step."""

import pytest
import torch

import vantage as vt
from vantage.generation.chunks import FEW, MOST, Pace, default_chunk
from vantage.generation.engine import Engine
from vantage.generation.forward_passes import ForwardPasses
from vantage.generation.run_ahead import RunAhead


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
