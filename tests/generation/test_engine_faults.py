"""Faults in the middle of a step: who is hit, who is not, and that no block is lost."""

from __future__ import annotations

import pytest
import torch

from tests.generation import zoo
from tests.generation.scenario import Ask, alone, asks, emptied, own, same
from vantage.generation import Engine, RequestFailed

SMALL = {"block": 4, "chunk": 8}


class Broken(Exception):
    """What goes wrong."""


def prompt(n, seed=0):
    return tuple(zoo.tokens(n, seed=seed)[0].tolist())


def break_when(model, layer, when, error=Broken):
    """Layer ``layer`` fails in the pass for which ``when(rows, tokens)`` holds, after the layers before it wrote."""

    def hook(module, args):
        rows, width = args[0].shape[:2]
        if when(rows, width):
            raise error("the roof fell in")

    return model.blocks[layer].register_forward_pre_hook(hook)


@pytest.mark.parametrize("kind", zoo.MODELS)
@pytest.mark.parametrize("layer", [0, 1])
def test_a_failed_pass_fails_its_requests_and_nobody_else(kind, layer):
    """Two rows decode in one pass, which fails; a third is being prefilled and goes on."""
    model = own(kind)
    source = {"source": (1, 2, 3)} if kind == "encoder-decoder" else {}
    first, second, third = (Ask(prompt(n, seed=n), 10, **source) for n in (5, 3, 30))
    expected = alone(model, third, **SMALL)
    engine = Engine(model, capacity=120, **SMALL)
    a, b = first.to(engine), second.to(engine)
    for _ in range(3):
        engine.step()
    c = third.to(engine)
    hook = break_when(model, layer, lambda rows, width: rows == 2)
    events = engine.step()
    hook.remove()
    assert {(event.request, event.pick, event.finish) for event in events} == {(a, None, "error"), (b, None, "error")}
    for request in (a, b):
        assert request.state == "finished"
        assert isinstance(request.error, RequestFailed)
        assert isinstance(request.error.__cause__, Broken)
        assert "the roof fell in" in str(request.error)
        assert len(request.outputs[0].tokens) == 3  # what it had said
    engine.run()
    same(c, expected, 1e-9)
    emptied(engine)


@pytest.mark.parametrize("at", [8, 4])
def test_a_failed_chunk_fails_its_request_alone(at):
    model = own("plain")
    asked = Ask(prompt(5), 12), Ask(prompt(20, seed=1), 12)
    engine = Engine(model, capacity=64, **SMALL)
    going = asked[0].to(engine)
    engine.step()
    gone = asked[1].to(engine)
    hook = break_when(model, 1, lambda rows, width: width == at)
    engine.run()
    hook.remove()
    assert gone.outputs[0].finish == "error"
    same(going, alone(model, asked[0], **SMALL), 1e-9)
    again = asked[1].to(engine)  # the engine is as good as new
    engine.run()
    same(again, alone(model, asked[1], **SMALL), 1e-9)
    emptied(engine)


def test_batch_invariant_a_fault_hits_one_row():
    model = own("plain")
    asked = [Ask(prompt(n, seed=n), 9) for n in (5, 6, 7)]
    engine = Engine(model, batch_invariant=True, **SMALL)
    requests = [ask.to(engine) for ask in asked]
    for _ in range(4):
        engine.step()
    passes = []
    hook = break_when(model, 1, lambda rows, width: passes.append(width) or len(passes) == 2)
    engine.step()
    hook.remove()
    engine.run()
    assert [request.outputs[0].finish for request in requests] == ["length", "error", "length"]
    for i in (0, 2):
        same(requests[i], alone(model, asked[i], batch_invariant=True, **SMALL), 1e-9)
    emptied(engine)


class Trap:
    """A constraint that fails at its third token."""

    def __init__(self, error):
        self.error, self.taken = error, 0

    def allow(self, logits_V):
        if self.taken == 2 and self.error is not None:
            error, self.error = self.error, None
            raise error

    def take(self, token):
        self.taken += 1

    def done(self):
        return False


def test_a_fault_in_choosing_is_the_requests_own():
    model = own("plain")
    asked = [Ask(prompt(n, seed=n), 9) for n in (5, 6)]
    engine = Engine(model, capacity=64, **SMALL)
    a = asked[0].to(engine)
    b = engine.submit(asked[1].tokens, max_tokens=9, constraint=Trap(Broken("trapped")))
    engine.run()
    assert b.outputs[0].finish == "error"
    assert isinstance(b.error.__cause__, Broken)
    assert len(b.outputs[0].tokens) == 2
    same(a, alone(model, asked[0], **SMALL), 1e-9)
    emptied(engine)


class ForkingTrap(Trap):
    """One whose forks do not fail."""

    def fork(self):
        return Trap(None)


def test_a_sample_whose_sibling_fails_in_the_same_pass_ends_with_it():
    engine = Engine(own("plain"), capacity=64, **SMALL)
    request = engine.submit(prompt(5), max_tokens=9, n=2, constraint=ForkingTrap(Broken("trapped")))
    events = engine.run()
    assert request.state == "finished"
    assert [output.finish for output in request.outputs] == ["error", "error"]
    assert [len(output.tokens) for output in request.outputs] == [2, 2]
    assert [event.finish for event in events if event.finish is not None] == ["error", "error"]
    emptied(engine)


def test_numbers_that_are_none_fail_their_request():
    model = own("plain")
    with torch.no_grad():
        model.embed.tokens.weight[7] = torch.nan
    engine = Engine(model, **SMALL)
    bad, good = engine.submit([1, 7, 2], max_tokens=3), engine.submit([1, 2, 3], max_tokens=3, stop=stop_at(7))
    engine.run()
    assert "NaN" in str(bad.error)
    assert good.error is None
    emptied(engine)


def stop_at(token):
    from vantage.generation import Stop

    return Stop(tokens=frozenset({token}))


@pytest.mark.parametrize("kind", ["plain", "encoder-decoder"])
def test_an_interrupt_ends_the_step_and_nothing_else(kind):
    """Ctrl-C may come while a token is chosen or within a pass. The next step goes on as if it had not."""
    model = own(kind)
    wanted = asks(zoo.VOCAB, source=kind == "encoder-decoder", count=3)
    expected = [alone(model, ask, **SMALL) for ask in wanted]
    engine = Engine(model, capacity=160, **SMALL)
    first = Ask(wanted[1].tokens, 9, source=wanted[1].source)
    trapped = engine.submit(first.tokens, max_tokens=9, constraint=Trap(KeyboardInterrupt()), source=first.source)
    requests = [ask.to(engine) for ask in wanted]
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    for _ in range(2):
        engine.step()
    hook = break_when(model, 1, lambda rows, width: width == 1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    hook.remove()
    engine.run()
    for request, other in zip(requests, expected, strict=True):
        same(request, other, 1e-9)
    (mine,), (other,) = trapped.outputs, alone(model, first, **SMALL).outputs
    assert mine.tokens == other.tokens
    assert [p.logprob for p in mine.picks] == pytest.approx([p.logprob for p in other.picks], abs=1e-9)
    emptied(engine)
