"""The engine, one thing at a time: who runs, who waits, what is shared, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.generation import zoo
from tests.generation.scenario import Ask, alone, asks, bits, counted, emptied, own, same, together
from tests.generation.test_stops import by_bytes
from vantage.errors import BadInput, Refused
from vantage.generation import Engine, Picker, QueueFull, Sampling, Stop
from vantage.generation.block_memory import MAX_PREFIXES
from vantage.spec.masks import Causal, Prefix

SMALL = {"block": 4, "chunk": 8}
EVERY = pytest.mark.parametrize("kind", zoo.MODELS)


def prompt(n, seed=0):
    return tuple(zoo.tokens(n, seed=seed)[0].tolist())


def source_of(kind):
    return {"source": (1, 2, 3)} if kind == "encoder-decoder" else {}


# ---- together as alone


@EVERY
@pytest.mark.parametrize("capacity", [None, 64])
def test_requests_together_are_what_they_are_alone(kind, capacity):
    model = own(kind)
    wanted = asks(zoo.VOCAB, source=kind == "encoder-decoder")
    expected = [alone(model, ask, **SMALL) for ask in wanted]
    engine, got = together(model, wanted, cancel=Ask(prompt(20), 9, **source_of(kind)), capacity=capacity, **SMALL)
    for mine, other in zip(got, expected, strict=True):
        same(mine, other, 1e-9)
    emptied(engine)


@pytest.mark.sampled
@EVERY
@pytest.mark.parametrize("capacity", [None, 64])
def test_batch_invariant_requests_are_the_same_bits(kind, capacity):
    model = own(kind, dtype=torch.float32)
    wanted = asks(zoo.VOCAB, source=kind == "encoder-decoder")
    options = {**SMALL, "batch_invariant": True}
    expected = [alone(model, ask, **options) for ask in wanted]
    extra = Ask(prompt(20), 9, **source_of(kind))
    engine, got = together(model, [*wanted, *wanted], cancel=extra, capacity=capacity, **options)
    for mine, other in zip(got, [*expected, *expected], strict=True):
        bits(mine, other)
    if kind != "encoder-decoder" and capacity is None:
        assert engine.stats.reused > 0  # the second time, prompts were found in the tree
    emptied(engine)


def test_the_same_seed_gives_the_same_text_whatever_else_runs():
    model = own("plain", dtype=torch.float32)
    ask = Ask(prompt(11), 20, Sampling(temperature=1.3, top_p=0.95, seed=42))
    (first,) = alone(model, ask, batch_invariant=True, **SMALL).outputs
    for others in (0, 3, 7):
        crowd = [Ask(prompt(5 + i, seed=i), 20, Sampling(temperature=1.0, seed=i)) for i in range(others)]
        _, got = together(model, [*crowd, ask], batch_invariant=True, capacity=160, **SMALL)
        assert got[-1].outputs[0].tokens == first.tokens
    other = replace(ask, sampling=replace(ask.sampling, seed=43))
    assert alone(model, other, batch_invariant=True, **SMALL).outputs[0].tokens != first.tokens


def test_decoding_rows_share_one_pass_and_prompts_come_in_chunks():
    model = own("plain")
    shapes = []
    model.embed.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    engine = Engine(model, **SMALL, share_prefixes=False)
    for n in (5, 3):
        engine.submit(prompt(n), max_tokens=9)
    engine.step()
    assert shapes == [(1, 5), (1, 3)]  # eight tokens: a chunk's worth
    engine.submit(prompt(20), max_tokens=3)
    shapes.clear()
    events = [engine.step() for _ in range(4)]
    assert shapes == [(2, 1), (1, 8), (2, 1), (1, 8), (2, 1), (1, 4), (3, 1)]
    assert [len(told) for told in events] == [2, 2, 3, 3]  # nobody waited for the long prompt
    assert engine.stats.calls == 2 + len(shapes)


# ---- order


def test_higher_priority_first_then_who_came_first():
    engine = Engine(own("plain"), rows=1, **SMALL)
    asked = [engine.submit(prompt(4, seed=i), max_tokens=2, priority=p) for i, p in enumerate((0, 1, 0, 2, 1))]
    ends = [event.request for event in engine.run() if event.finish]
    assert ends == [asked[i] for i in (3, 1, 4, 0, 2)]


def test_a_more_urgent_request_takes_the_blocks_of_a_less_urgent_one():
    model = own("plain")
    engine = Engine(model, capacity=48, **SMALL)
    slow = Ask(prompt(20), 20)
    fast = Ask(prompt(30, seed=1), 4, priority=1)
    first = slow.to(engine)
    for _ in range(8):
        engine.step()
    second = fast.to(engine)
    ends = [event.request for event in engine.run() if event.finish]
    assert ends == [second, first]
    assert first.preemptions == 1
    assert first.recomputed > 0
    same(first, alone(model, slow, **SMALL), 1e-9)
    same(second, alone(model, fast, **SMALL), 1e-9)
    emptied(engine)


@pytest.mark.sampled
def test_who_came_first_is_never_put_back_for_who_came_later():
    """The second is still being prefilled when the first has grown into its blocks."""
    model, preempted = own("plain"), 0
    for capacity in range(44, 64, 4):
        for n in (2, 3, 4, 5):
            engine = Engine(model, capacity=capacity, block=4, chunk=1)
            asked = Ask(prompt(n), 40), Ask(prompt(24, seed=1), 4)
            first, second = (ask.to(engine) for ask in asked)
            engine.run()
            assert first.preemptions == 0
            preempted += second.preemptions
    assert preempted > 0
    for request, ask in zip((first, second), asked, strict=True):
        same(request, alone(model, ask), 1e-9)


def test_the_queue_is_bounded():
    engine = Engine(own("plain"), queue=2, rows=1, **SMALL)
    for _ in range(2):
        engine.submit(prompt(3), max_tokens=2)
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        engine.submit(prompt(3), max_tokens=2)
    engine.step()  # one has begun
    engine.submit(prompt(3), max_tokens=2)
    assert len([event for event in engine.run() if event.finish]) == 3


# ---- prefixes


def test_a_prefix_is_computed_once():
    model = own("plain")
    engine, shared = Engine(model, **SMALL), prompt(13)
    first, second = Ask((*shared, 1, 2), 4), Ask((*shared, 3, 4, 5), 4)
    a = first.to(engine)
    engine.run()
    before = engine.stats
    b = second.to(engine)
    engine.run()
    after = engine.stats
    assert a.prefix == (0, "first seen")
    assert b.prefix == (13, "differs at token 13")
    assert after.reused - before.reused == 13
    assert after.prefilled - before.prefilled == 3
    assert {n - m for n, m in zip(after.projections, before.projections, strict=True)} == {3 + 3}
    same(b, alone(model, second, **SMALL), 1e-9)
    c = second.to(engine)  # all of it: the last token is computed for its logits
    engine.run()
    assert c.prefix == (15, "complete")
    same(c, alone(model, second, **SMALL), 1e-9)
    emptied(engine)


def test_a_prefix_is_shared_while_its_first_request_still_runs():
    engine, shared = Engine(own("plain"), **SMALL), prompt(18)
    engine.submit(shared, max_tokens=30)
    for _ in range(4):
        engine.step()
    b = engine.submit((*shared, 5), max_tokens=2)
    engine.step()
    assert b.prefix == (16, "differs at token 16")  # whole blocks
    engine.run()
    emptied(engine)


def test_an_answer_is_the_prefix_of_the_next_turn():
    engine = Engine(own("plain"), **SMALL)
    a = engine.submit(prompt(9), max_tokens=6)
    engine.run()
    turn = [*prompt(9), *a.outputs[0].tokens, 7, 8]
    b = engine.submit(turn, max_tokens=1)
    engine.run()
    assert b.prefix.tokens == 9 + 5  # the last token of the answer was never read


def test_tenants_share_nothing_unless_asked():
    model, tokens = own("plain"), prompt(12)
    engine = Engine(model, **SMALL)
    for tenant in ("a", "b", "b"):
        r = engine.submit(tokens, max_tokens=1, tenant=tenant)
        engine.run()
        expected = {"a": (0, "first seen"), "b": (0, "other tenant")}
        if r.id < 2:
            assert r.prefix == expected[tenant]
    assert r.prefix == (11, "complete")
    engine = Engine(model, share_tenants=True, **SMALL)
    for tenant in ("a", "b"):
        r = engine.submit(tokens, max_tokens=1, tenant=tenant)
        engine.run()
    assert r.prefix == (11, "complete")


def test_the_least_recently_used_prefix_is_evicted_and_the_miss_says_so():
    engine = Engine(own("plain"), capacity=48, **SMALL)
    one, two, three = (prompt(20, seed=i) for i in range(3))
    for tokens in (one, two, one, three):
        engine.submit(tokens, max_tokens=1)
        engine.run()
    assert engine.stats.evictions == 1
    kept = engine.submit(one, max_tokens=1)
    gone = engine.submit(two, max_tokens=1)
    engine.run()
    assert kept.prefix == (19, "complete")
    assert gone.prefix == (0, "evicted")
    emptied(engine)


def test_batch_invariant_prefixes_end_with_a_chunk():
    engine, shared = Engine(own("plain"), batch_invariant=True, **SMALL), prompt(21)
    for last in (1, 2):
        r = engine.submit((*shared, last), max_tokens=1)
        engine.run()
    assert r.prefix == (16, "differs at token 16")


def test_prefixes_are_not_let_go_for_nothing():
    """A request that cannot begin yet, whatever is evicted, evicts nothing."""
    engine = Engine(own("plain"), capacity=96, **SMALL)
    kept = prompt(20, seed=9)
    engine.submit(kept, max_tokens=1)
    engine.run()
    engine.submit(prompt(40), max_tokens=8)
    for _ in range(6):
        engine.step()
    engine.submit(prompt(60, seed=1), max_tokens=2)  # waits for the other
    engine.step()
    assert engine.stats.evictions == 0
    engine.run()
    assert engine.stats.evictions > 0
    emptied(engine)


def test_windowed_layers_let_go_of_what_nobody_will_see_where_prefixes_are_not_shared():
    model, held = own("mixed"), {}  # a layer with a window of 9, and one that sees all
    for share in (True, False):
        engine = Engine(model, share_prefixes=share, **SMALL)
        engine.submit(prompt(40), max_tokens=20)
        for _ in range(20):
            engine.step()
        held[share] = engine.stats.blocks_used
        engine.run()
        emptied(engine)
    assert held[True] == 2 * 14
    assert held[False] <= 14 + 4


def test_a_cache_that_grows_keeps_a_bounded_number_of_prefixes():
    engine = Engine(own("plain"), **SMALL)
    for i in range(MAX_PREFIXES + 6):
        engine.submit(prompt(6, seed=i), max_tokens=1)
    engine.run()
    assert engine.stats.prefixes == MAX_PREFIXES
    emptied(engine)


@pytest.mark.parametrize("kind", ["window", "mixed"])
def test_windows_that_let_go_change_nothing(kind):
    model = own(kind)
    wanted = asks(zoo.VOCAB)
    expected = [alone(model, ask, **SMALL) for ask in wanted]
    for options in ({}, {"capacity": 64}, {"capacity": 64, "batch_invariant": True}):
        engine, got = together(model, wanted, share_prefixes=False, **SMALL, **options)
        for mine, other in zip(got, expected, strict=True):
            same(mine, other, 1e-9)
        emptied(engine)


def test_batch_invariant_what_was_generated_is_not_taken_from_a_prompt():
    """Another request reads, as a prompt, what this one has generated: the same tokens, computed in other pieces."""
    model = own("plain", dtype=torch.float32)
    options = {**SMALL, "batch_invariant": True}
    ask = Ask(prompt(9), 30)
    expected = alone(model, ask, **options)
    engine = Engine(model, capacity=48, **options)
    request = ask.to(engine)
    for _ in range(24):
        engine.step()
    told = (*ask.tokens, *expected.outputs[0].tokens)
    urgent = engine.submit(told[:26], max_tokens=2, priority=1)
    engine.run()
    assert request.preemptions == 1
    assert urgent.prefix.tokens == 8
    bits(request, expected)


def test_batch_invariant_what_was_generated_is_no_prompt_for_others():
    """The other way round: a request that came back has its answer in the cache, token by token."""
    model = own("plain", dtype=torch.float32)
    options = {**SMALL, "batch_invariant": True}
    engine = Engine(model, capacity=48, **options)
    request = Ask(prompt(9), 30).to(engine)
    for _ in range(24):
        engine.step()
    engine.submit(prompt(26, seed=1), max_tokens=2, priority=1)
    engine.run()
    assert request.preemptions == 1
    ask = Ask((*prompt(9), *request.outputs[0].tokens[:20]), 4)
    again = ask.to(engine)
    engine.run()
    bits(again, alone(model, ask, **options))


def test_prefixes_can_be_switched_off():
    engine = Engine(own("plain"), share_prefixes=False, **SMALL)
    for _ in range(2):
        r = engine.submit(prompt(12), max_tokens=3)
        engine.run()
    assert r.prefix == (0, "not sought")
    assert engine.stats.blocks_used == 0


# ---- samples


@pytest.mark.parametrize("kind", ["plain", "mixed", "encoder-decoder"])
def test_samples_share_the_prompt(kind):
    model = own(kind)
    ask = Ask(prompt(13), 7, Sampling(temperature=1.5, seed=3), n=4, **source_of(kind))
    engine = Engine(model, **SMALL)
    request = ask.to(engine)
    engine.run()
    assert len({tuple(output.tokens) for output in request.outputs}) == 4
    assert set(engine.stats.projections) == {13 + 4 * 6}
    with torch.no_grad():  # each draws its own numbers
        for i, output in enumerate(request.outputs):
            picker = Picker(ask.sampling, ask.tokens, vocab=zoo.VOCAB, sample=i)
            source = {name: torch.tensor([tokens]) for name, tokens in source_of(kind).items()}
            logits = model(torch.tensor([[*ask.tokens, *output.tokens]]), **source)[0, 12:]
            for token, row in zip(output.tokens, logits, strict=False):
                assert picker.pick(row).token == token
                picker.took(token)
    tight, got = together(model, [ask, ask], capacity=28, share_prefixes=False, **SMALL)
    assert tight.stats.preemptions > 0
    counted(tight, got)
    assert tight.stats.prefilled == 2 * 13
    for mine in got:
        same_tokens = [output.tokens for output in mine.outputs]
        assert same_tokens == [output.tokens for output in request.outputs]
    emptied(tight)


# ---- ends


def test_an_answer_ends_with_a_stop_token_or_at_its_length():
    model = own("plain")
    whole = alone(model, Ask(prompt(5), 12), **SMALL).outputs[0]
    assert whole.finish == "length"
    assert len(whole.tokens) == 12
    third = whole.tokens[2]
    engine = Engine(model, **SMALL)
    request = engine.submit(prompt(5), max_tokens=12, stop=Stop(tokens=frozenset({third})))
    last = engine.run()[-1]
    assert request.outputs[0].finish == "stop" == last.finish
    assert request.outputs[0].tokens == whole.tokens[: whole.tokens.index(third) + 1]


def test_stop_strings_are_looked_for_in_the_text():
    model = vt.build(vt.decoder(vocab=257, width=24, layers=2, heads=4), seed=1).eval()
    model.tokenizer = by_bytes()
    halves = {token: -math.inf for token in range(257) if not model.tokenizer.decode([token]).isascii()}
    sampling = Sampling(logit_bias=halves)
    told = alone(model, Ask(prompt(5), 12, sampling), **SMALL).outputs[0].tokens
    stop = model.tokenizer.decode(told)[3:5]
    engine = Engine(model, **SMALL)
    request = engine.submit(prompt(5), max_tokens=12, stop=Stop((stop,)), sampling=sampling)
    engine.run()
    assert request.outputs[0].finish == "stop"
    assert stop in model.tokenizer.decode(request.outputs[0].tokens)
    assert stop not in model.tokenizer.decode(request.outputs[0].tokens[:-1])


class Countdown:
    """Allows one token, three times."""

    def __init__(self, left=3):
        self.left = left

    def allow(self, logits_V):
        keep = logits_V[9].clone()
        logits_V.fill_(-torch.inf)
        logits_V[9] = keep

    def take(self, token):
        assert token == 9
        self.left -= 1

    def done(self):
        return self.left == 0

    def fork(self):
        return Countdown(self.left)


def test_a_constraint_ends_an_answer_and_serves_every_sample():
    engine = Engine(own("plain"), **SMALL)
    request = engine.submit(prompt(5), max_tokens=12, n=2, constraint=Countdown())
    engine.run()
    assert [output.tokens for output in request.outputs] == [[9, 9, 9]] * 2
    assert {output.finish for output in request.outputs} == {"stop"}

    class Single(Countdown):
        fork = None

    with pytest.raises(BadInput, match="one sample"):
        engine.submit(prompt(5), max_tokens=12, n=2, constraint=Single())


@EVERY
def test_cancelling_at_any_time_leaves_the_others_and_the_pool_alone(kind):
    model = own(kind)
    ask, extra = Ask(prompt(9), 12, **source_of(kind)), Ask(prompt(30, seed=5), 12, n=2, **source_of(kind))
    expected = alone(model, ask, **SMALL)
    for after in range(0, 12, 2):
        engine = Engine(model, capacity=160, **SMALL)
        going, gone = ask.to(engine), extra.to(engine)
        for _ in range(after):
            engine.step()
        engine.cancel(gone)
        told = len(gone.outputs[0].picks)
        events = [event for event in engine.run() if event.request is gone]
        assert [event.finish for event in events] == ["cancelled"] * 2
        assert {output.finish for output in gone.outputs} == {"cancelled"}
        assert len(gone.outputs[0].picks) == told
        assert gone.state == "finished"
        same(going, expected, 1e-9)
        engine.cancel(going)  # too late: it stays as it is
        assert going.outputs[0].finish == "length"
        assert not engine._passes._sources
        emptied(engine)


# ---- lengths


def test_growing_past_the_declared_length_is_computed_again_and_counted():
    model = own("ntk")  # its frequencies change past 16 tokens
    ask = Ask(prompt(10), 30)
    engine = Engine(model, **SMALL)
    request = ask.to(engine)
    engine.run()
    assert request.recomputed == 16 + 32 == engine.stats.recomputed
    told = [*ask.tokens, *request.outputs[0].tokens]
    with torch.no_grad():  # each token is what one full pass with its declared length says
        full = {n: model(torch.tensor([told[:n]]), length=n)[0].log_softmax(-1) for n in (16, 32)}
        full[64] = model(torch.tensor([told]), length=64)[0].log_softmax(-1)
    for i, pick in enumerate(request.outputs[0].picks):
        at = 10 + i
        length = next(n for n in full if at <= n)
        assert float(full[length][at - 1, pick.token]) == pytest.approx(pick.logprob, abs=1e-9)


def test_requests_of_different_declared_lengths_run_in_passes_of_their_own():
    model = own("ntk")
    shapes = []
    model.embed.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    engine = Engine(model, chunk=64)
    for n in (4, 5, 20, 21):
        engine.submit(prompt(n), max_tokens=3)
    engine.run()
    assert shapes[4:] == [(2, 1), (2, 1)] * 2


def test_a_learned_table_ends_an_answer_and_refuses_a_longer_prompt():
    model = vt.build(vt.decoder(vocab=40, width=24, layers=2, heads=4, position="learned", max_length=12)).eval()
    with pytest.warns(vt.ContextWarning, match="ended after 5 of 50 tokens"):
        request = alone(model, Ask(prompt(8), 50), **SMALL)
    assert request.outputs[0].finish == "length"
    assert len(request.outputs[0].tokens) == 5  # the last one needs no position
    with pytest.raises(BadInput, match="12 positions"):
        Engine(model).submit(prompt(13), max_tokens=1)


def test_a_prefix_that_sees_both_ways_is_read_in_one_piece():
    made = vt.decoder(vocab=40, width=24, layers=2, heads=4)
    mask = Causal() | Prefix(11)
    made = replace(made, layers=tuple(replace(layer, mask=mask) for layer in made.layers))
    model = zoo.sharpen(vt.build(made), 0).double()
    shapes = []
    model.embed.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    ask = Ask(prompt(20), 3)
    request = alone(model, ask, **SMALL)
    assert shapes[:3] == [(1, 11), (1, 5), (1, 4)]
    with torch.no_grad():
        told = [*ask.tokens, *request.outputs[0].tokens]
        full = model(torch.tensor([told]))[0].log_softmax(-1)
    for i, pick in enumerate(request.outputs[0].picks):
        assert float(full[19 + i, pick.token]) == pytest.approx(pick.logprob, abs=1e-9)
    engine = Engine(model, **SMALL)
    for last in (1, 2):
        r = engine.submit((*prompt(9), last, 5, 6), max_tokens=1)
        engine.run()
    assert r.prefix.tokens == 0  # tokens that agree have seen others that do not


# ---- refused


def test_what_an_engine_cannot_do_is_refused():
    model = own("plain")
    engine = Engine(model, capacity=64, rows=4, **SMALL)
    for options, says in (
        ({"tokens": []}, "empty prompt"),
        ({"tokens": [1.5]}, "whole numbers"),
        ({"tokens": [[1, 2]]}, "whole numbers"),
        ({"tokens": [40]}, "token 40"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"n": 0}, "n=0"),
        ({"n": 5}, "n=5"),
        ({"stop": Stop(("x",))}, "tokenizer"),
        ({"source": [1]}, "no encoder"),
        ({"max_tokens": 63}, "larger capacity"),
    ):
        with pytest.raises(BadInput, match=says):
            engine.submit(**{"tokens": prompt(3), "max_tokens": 2, **options})
    assert engine.idle
    with pytest.raises(BadInput, match="reads a source"):
        Engine(own("encoder-decoder")).submit(prompt(3), max_tokens=2)
    with pytest.raises(BadInput, match="training mode"):
        Engine(own("plain").train())
    with pytest.raises(Refused, match="no head"):
        Engine(vt.build(vt.encoder(vocab=40, width=24, layers=1, heads=4)).eval())
    with pytest.raises(BadInput, match="not one of this engine's"):
        Engine(model).cancel(engine.submit(prompt(3), max_tokens=2))
    for name in ("chunk", "rows", "queue"):
        with pytest.raises(BadInput, match=f"{name}=0"):
            Engine(model, **{name: 0})


def test_a_request_that_just_fits_runs():
    """The pool holds prompt and answer exactly, with a prefix in it whose last block is part full."""
    model = own("plain")
    engine = Engine(model, capacity=24, **SMALL)
    for seed, n in ((0, 10), (0, 11), (1, 12)):
        ask = Ask(prompt(n, seed=seed), 25 - n)
        request = ask.to(engine)
        engine.run()
        same(request, alone(model, ask, **SMALL), 1e-9)
    emptied(engine)
