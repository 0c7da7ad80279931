"""The engine on a GPU: what it says there is what it says on the host."""

from __future__ import annotations

import pytest
import torch

from tests.generation import zoo
from tests.generation.scenario import Ask, alone, asks, bits, emptied, own, same, together

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL = {"block": 4, "chunk": 8}


@pytest.mark.parametrize("kind", zoo.MODELS)
@pytest.mark.parametrize("invariant", [False, True])
def test_a_batch_on_a_gpu_is_what_each_is_alone_on_the_host(kind, invariant):
    wanted = asks(zoo.VOCAB, source=kind == "encoder-decoder")
    options = {**SMALL, "batch_invariant": invariant}
    expected = [alone(own(kind), ask, **options) for ask in wanted]
    there = own(kind).cuda()
    engine, got = together(
        there, wanted, cancel=Ask(wanted[0].tokens, 20, source=wanted[0].source), capacity=56, **options
    )
    for mine, other in zip(got, expected, strict=True):
        same(mine, other, 1e-8)
    assert engine.stats.preemptions > 0
    if invariant:
        for mine, ask in zip(got, wanted, strict=True):
            bits(mine, alone(there, ask, **options))
    emptied(engine)
