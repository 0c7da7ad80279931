"""Where norms and residuals stand: every wiring against its formula."""

from dataclasses import replace

import pytest
import torch

from tests.attention.helpers import F64, check_gradients, context, sharpen, vectors
from vantage.attention import GroupedQuery
from vantage.model.assemble import assemble_blocks
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm, RMSNorm
from vantage.position import T5, Rope
from vantage.spec.model import POST, PRE, SANDWICH, Layer, ModelSpec, Parallel, Wiring
from vantage.spec.parts import EncoderOutput
from vantage.spec.positions import Positions

WIRINGS = {
    "pre": PRE,
    "post": POST,
    "sandwich": SANDWICH,
    "kept": Wiring(kept=2.5),
    "normed and kept": Wiring(normed=True, kept=0.5),
    "parallel": Parallel(),
    "two norms": Parallel(norms=2),
}
LAYER = Layer(GroupedQuery(2, bias=True), FeedForward(6, "gelu"), LayerNorm(), qk=(Rope(),))


def block_of(layer, width=4):
    spec = ModelSpec(vocab=3, width=width, layers=(layer,))
    return sharpen(assemble_blocks(spec, {})[0].to(F64))


def here(memory=None):
    return context(Positions.arange(2, 3), memory=memory)


def memory():
    return EncoderOutput(vectors(2, 4, 4, seed=9), Positions.arange(2, 4))


FORMULAS = {
    "pre": lambda x, f, norm: x + f(norm["before"](x)),
    "post": lambda x, f, norm: norm["outer"](x + f(x)),
    "sandwich": lambda x, f, norm: x + norm["after"](f(norm["before"](x))),
    "kept": lambda x, f, norm: 2.5 * x + f(norm["before"](x)),
    "normed and kept": lambda x, f, norm: 0.5 * norm["before"](x) + f(norm["before"](x)),
}


@pytest.mark.parametrize("wiring", FORMULAS)
@pytest.mark.parametrize("crossed", [False, True])
@torch.no_grad()
def test_one_after_the_other(wiring, crossed):
    layer = replace(LAYER, wiring=WIRINGS[wiring], cross=GroupedQuery(2) if crossed else None)
    block, x = block_of(layer), vectors(2, 3, 4)
    source = memory() if crossed else None
    wanted = x
    assert len(block.steps) == (3 if crossed else 2)
    for step in block.steps:
        norms = {"before": step.before, "after": step.after, "outer": step.outer}
        made = {name for name, norm in norms.items() if isinstance(norm, torch.nn.LayerNorm)}
        assert made == {"post": {"outer"}, "sandwich": {"before", "after"}}.get(wiring, {"before"})
        wanted = FORMULAS[wiring](wanted, lambda t, step=step: step.sublayer(t, here(source)), norms)
    torch.testing.assert_close(block(x, here(source)), wanted)


@torch.no_grad()
def test_side_by_side_on_one_norm():
    block, x = block_of(replace(LAYER, wiring=Parallel())), vectors(2, 3, 4)
    (norm,), (f, g) = block.norms, block.sublayers
    torch.testing.assert_close(block(x, here()), x + f(norm(x), here()) + g(norm(x), here()))


@torch.no_grad()
def test_side_by_side_on_a_norm_each():
    block, x = block_of(replace(LAYER, wiring=Parallel(norms=2))), vectors(2, 3, 4)
    (a, b), (f, g) = block.norms, block.sublayers
    torch.testing.assert_close(block(x, here()), x + f(a(x), here()) + g(b(x), here()))
    assert not torch.allclose(a(x), b(x))


@torch.no_grad()
def test_side_by_side_with_cross_attention():
    block, x = block_of(replace(LAYER, wiring=Parallel(), cross=GroupedQuery(2))), vectors(2, 3, 4)
    (norm,), parts = block.norms, block.sublayers
    wanted = x + sum(f(norm(x), here(memory())) for f in parts)
    torch.testing.assert_close(block(x, here(memory())), wanted)


@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_dropout_acts_on_what_is_added_and_in_training_only(wiring):
    layer = replace(LAYER, wiring=WIRINGS[wiring], dropout=0.5)
    block, x = block_of(layer), vectors(2, 3, 4)
    assert torch.equal(block(x, here()), block_of(replace(layer, dropout=0.0))(x, here()))
    block.train()
    torch.manual_seed(0)
    assert not torch.equal(block(x, here()), block(x, here()))
    if isinstance(layer.wiring, Parallel):
        kept = block(x, here()) == x
        assert 0.05 < kept.double().mean() < 0.6  # a quarter: both are dropped


def test_shared_parts_are_one_module_and_others_are_not():
    encoding = T5(4, 8)
    layer = replace(LAYER, bias=encoding.parts(causal=True).bias)
    blocks = assemble_blocks(ModelSpec(3, 4, (layer, layer)), {})
    first, second = (block.steps[0].sublayer.scorer.bias for block in blocks)
    assert first is second
    own = replace(LAYER, bias=replace(encoding, shared=False).parts(causal=True).bias)
    blocks = assemble_blocks(ModelSpec(3, 4, (own, own)), {})
    first, second = (block.steps[0].sublayer.scorer.bias for block in blocks)
    assert first is not second


@pytest.mark.sampled
@pytest.mark.parametrize("wiring", WIRINGS)
def test_gradcheck(wiring):
    layer = replace(LAYER, wiring=WIRINGS[wiring], attention=GroupedQuery(1), ffn=FeedForward(2), norm=RMSNorm())
    check_gradients(block_of(layer), lambda m, x: m(x, here()), vectors(2, 3, 4))


def test_gradcheck_across_and_with_experts():
    layer = replace(
        LAYER, attention=GroupedQuery(1), cross=GroupedQuery(1), ffn=Experts(FeedForward(2), 2, TopK(1)), norm=RMSNorm()
    )
    check_gradients(
        block_of(layer),
        lambda m, x, hidden: m(x, here(EncoderOutput(hidden, Positions.arange(2, 4)))),
        vectors(2, 3, 4),
        vectors(2, 4, 4, seed=1),
    )
