"""Compiled forms against eager ones. A compile takes half a minute on a CPU, so these are few and slow."""

import pytest
import torch

from tests.attention.helpers import sharpen
from tests.kernels.helpers import ByDistance, call, normal
from tests.spec.helpers import CAUSAL, SAME_SEGMENT, both, window
from vantage.kernels import flex, kernel_named
from vantage.model import build, decoder
from vantage.spec.normalisers import Softmax
from vantage.spec.positions import Positions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(flex.cannot_compile("cpu") is not None, reason="no C++ compiler on this machine"),
    pytest.mark.filterwarnings("default"),  # compilers warn about themselves
]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@torch.no_grad()
def test_compiled_flex_is_the_reference():
    """Groups, a window, documents, unequal rows, a bias, a softcap and a temperature, at once."""
    pos = Positions.packed([[40, 24], [50]], width=64)
    c = call(
        2,
        2,
        2,
        64,
        64,
        16,
        16,
        meant=both(both(CAUSAL, window(20)), SAME_SEGMENT),
        q_pos=pos,
        k_pos=pos,
        softcap=3.0,
        normalise=Softmax(0.7),
        bias=ByDistance(normal(4, seed=6).abs().float()),
    ).to(torch.float32)
    kernel = kernel_named("flex-compiled")
    assert kernel.refuses(c.need, c.q, c.view) is None
    torch.testing.assert_close(c.run(kernel).out, c.run(kernel_named("reference")).out, rtol=0, atol=2e-5)


@torch.no_grad()
def test_a_compiled_model_is_the_model():
    model = sharpen(build(decoder(vocab=11, width=32, layers=2, heads=4, kv_heads=2)))
    tokens = torch.randint(11, (2, 16), generator=torch.Generator().manual_seed(0))
    wanted = model(tokens)
    compiled = torch.compile(model)
    torch.testing.assert_close(compiled(tokens), wanted, rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_compiled_model_with_a_cache_is_the_model():
    model = sharpen(build(decoder(vocab=11, width=32, layers=2, heads=4, kv_heads=2, position="alibi")))
    tokens = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(0))
    wanted = model(tokens)
    compiled, cache = torch.compile(model), model.new_cache(2, capacity=16)
    got = [compiled(part, cache=cache) for part in tokens.split([8, 2, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(got, 1), wanted, rtol=0, atol=1e-4)
    assert cache.tokens == (12, 12)
