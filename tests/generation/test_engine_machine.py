"""Any order of arrivals, steps and cancellations over a tiny pool: every answer is as alone, and no block is lost."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.generation import zoo
from tests.generation.scenario import Ask, alone, bits, counted, emptied, same
from tests.sampling import examples
from vantage.generation import Engine, QueueFull, Sampling

BLOCK, CHUNK, CAPACITY, QUEUE = 2, 4, 24, 4
TRUNKS = [(5, 6, 7, 8, 9, 10, 11), (5, 6, 7, 1, 2), (20,)]


@functools.cache
def model(kind):
    return zoo.model(kind)


@functools.cache
def solo(kind, invariant_, ask):
    return alone(model(kind), ask, block=BLOCK, chunk=CHUNK, batch_invariant=invariant_)


ASKS = st.builds(
    Ask,
    tokens=st.builds(
        lambda trunk, n, rest: (*trunk[:n], *rest),
        st.sampled_from(TRUNKS),
        st.integers(1, 7),
        st.lists(st.integers(0, 2), max_size=6),
    ),
    max_tokens=st.integers(1, 9),
    sampling=st.builds(Sampling, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 2), logprobs=st.just(2)),
    priority=st.integers(0, 2),
    tenant=st.sampled_from([None, "a"]),
    n=st.sampled_from([1, 1, 1, 2]),
)


class Engines(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from(["plain", "mixed", "latent", "ntk"]), invariant_=st.booleans(), share=st.booleans()
    )
    def begin(self, kind, invariant_, share):
        self.kind, self.invariant, self.shared = kind, invariant_, share
        self.engine = Engine(
            model(kind),
            capacity=CAPACITY,
            block=BLOCK,
            chunk=CHUNK,
            queue=QUEUE,
            rows=3,
            batch_invariant=invariant_,
            share_prefixes=share,
        )
        self.asked, self.cancelled, self.events = [], set(), []

    @rule(ask=ASKS)
    def submit(self, ask):
        waiting = sum(request.state == "waiting" for _, request in self.asked)
        if waiting >= QUEUE:
            with pytest.raises(QueueFull):
                ask.to(self.engine)
        else:
            self.asked.append((ask, ask.to(self.engine)))

    @rule(steps=st.integers(1, 5))
    def step(self, steps):
        for _ in range(steps):
            self.events += self.engine.step()

    @precondition(lambda self: getattr(self, "asked", None))
    @rule(data=st.data())
    def cancel(self, data):
        _, request = data.draw(st.sampled_from(self.asked))
        if request.state != "finished":
            self.cancelled.add(request)
        self.engine.cancel(request)

    @invariant()
    def every_block_is_counted(self):
        if not hasattr(self, "engine"):
            return
        scheduler, memory = self.engine._scheduler, self.engine._memory
        caches = scheduler.caches() + [leaf.cache for leaf in memory.prefixes._used.values()]
        for i, ledger in enumerate(memory._empty.ledgers):
            pool, uses = ledger.pool, {}
            for row in (row for cache in caches for row in cache.ledgers[i]._state.rows):
                for block in row.blocks:
                    uses[block] = uses.get(block, 0) + 1
            assert [pool.uses(block) for block in range(1, pool.blocks + 1)] == [
                uses.get(block, 0) for block in range(1, pool.blocks + 1)
            ]

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        self.events += self.engine.run()
        compare = bits if self.invariant else functools.partial(same, close=1e-9)
        for ask, request in self.asked:
            if request not in self.cancelled:
                compare(request, solo(self.kind, self.invariant, ask))
            else:
                assert request.error is None
        for _, request in self.asked:  # the events tell all of it, in order
            for output in request.outputs:
                told = [e for e in self.events if e.request is request and e.sample == output.sample]
                assert [e.pick for e in told if e.pick is not None] == output.picks
                assert [e.finish for e in told if e.finish is not None] == [output.finish]
        if not self.shared:
            counted(self.engine, [request for _, request in self.asked])
        emptied(self.engine)


TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=examples(40), stateful_step_count=14)


class ManyEngines(Engines):
    """The same, for longer."""


TestManyEngines = pytest.mark.slow(ManyEngines.TestCase)
TestManyEngines.settings = settings(max_examples=400, stateful_step_count=40)


def test_the_pool_of_this_test_is_too_small_for_all():
    """Else nothing would be preempted, and the machine above would show less than it says."""
    engine = Engine(model("plain"), capacity=CAPACITY, block=BLOCK, chunk=CHUNK, rows=3)
    for i in range(3):
        engine.submit(torch.tensor([i, 1, 2, 3, 4, 5, 6]), max_tokens=9)
    engine.run()
    assert engine.stats.preemptions > 0
    assert engine.stats.evictions > 0
