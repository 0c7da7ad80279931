"""Small variants that single families need: BLOOM's normed residual, Grok-2's capped router and scaled experts."""

from dataclasses import replace

import torch

from tests.attention.helpers import F64, check_gradients, context, sharpen, vectors
from vantage.attention import GroupedQuery
from vantage.model.assemble import assemble_blocks
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.spec.model import Layer, ModelSpec, Wiring
from vantage.spec.positions import Positions

LAYER = Layer(GroupedQuery(2), FeedForward(6, "gelu"), LayerNorm(), wiring=Wiring(normed=True))
GROK = Experts(FeedForward(5), 4, TopK(2, renormalise=False, softcap=0.6), FeedForward(7), scale=2**-0.5)


def block_of(layer):
    return sharpen(assemble_blocks(ModelSpec(3, 4, (layer,)), {})[0].to(F64))


def here(T=3):
    return context(Positions.arange(2, T))


@torch.no_grad()
def test_the_residual_is_the_normed_input():
    block, x = block_of(LAYER), vectors(2, 3, 4)
    wanted = x
    for step in block.steps:
        n = step.before(wanted)
        wanted = n + step.sublayer(n, here())
    torch.testing.assert_close(block(x, here()), wanted)
    plain = block_of(replace(LAYER, wiring=Wiring()))
    assert not torch.allclose(plain(x, here()), wanted)


def test_gradcheck_of_a_normed_residual():
    check_gradients(block_of(LAYER), lambda m, x: m(x, here()), vectors(2, 3, 4))


@torch.no_grad()
def test_a_capped_router_and_a_scaled_sum():
    part, x = sharpen(GROK.build(4).to(F64)), vectors(2, 3, 4, seed=1)
    wanted = torch.zeros_like(x)
    for b in range(2):
        for t in range(3):
            token = x[b, t]
            share = (0.6 * torch.tanh(part.router.linear.weight @ token / 0.6)).softmax(-1)
            best = share.argsort(descending=True)[:2].tolist()
            chosen = sum(share[e] * part.experts[e](token) for e in best)
            wanted[b, t] = (chosen + part.shared(token)) / 2**0.5
    torch.testing.assert_close(part(x), wanted)


def test_gradcheck_of_capped_and_scaled_experts():
    check_gradients(sharpen(GROK.build(4).to(F64)), lambda m, x: m(x), vectors(1, 2, 4, seed=1))
