"""Value residual: a worked number, the formula layer by layer, caches, gradients, costs, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.attention.helpers import F64
from tests.attention.model_checks import (
    TOKENS,
    check_cached,
    check_costs,
    check_generated,
    check_gradients,
    check_saved,
    check_taken_back,
    small_model,
)
from vantage.attention.value_residual import ValueMix
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.spec.parts import Context
from vantage.spec.positions import Positions

MIXED = vt.ValueResidual(4, 2, own=0.75, first=0.5)


def empty_pass() -> Context:
    return Context(Positions.arange(1, 1), lambda *_: pytest.fail("no kernel is asked"), ())


def test_a_worked_number():
    """Half of 6 and half of 2 are 4; the first layer's own stay as they are."""
    ctx, config = empty_pass(), vt.ValueResidual(1)
    first, later = (torch.tensor([[[[v]]]], dtype=F64) for v in (2.0, 6.0))
    assert ValueMix(config, 0)(first, ctx) is first
    assert float(ValueMix(config, 1)(later, ctx)) == 4.0
    assert float(ValueMix(replace(config, own=1.0, first=0.25), 2)(later, ctx)) == 6.5  # of the first, not of the mix


@torch.no_grad()
def test_what_layers_keep_is_the_mix():
    """Every layer's cached values against the maps of its own input and of the first layer's."""
    m = small_model(MIXED, layers=3)
    inputs: list[torch.Tensor] = []
    for block in m.blocks:
        block.sublayers[0].qkv.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    cache = m.new_cache(2)
    m(TOKENS, cache=cache)
    raw = [block.sublayers[0].project(x)[2] for block, x in zip(m.blocks, list(inputs), strict=True)]
    torch.testing.assert_close(cache.layers[0].view().v, raw[0])
    for layer in (1, 2):
        torch.testing.assert_close(cache.layers[layer].view().v, 0.75 * raw[layer] + 0.5 * raw[0])


@torch.no_grad()
def test_without_the_first_layers_share_it_is_grouped_query_attention():
    alone = small_model(replace(MIXED, own=1.0, first=0.0))
    plain = small_model(vt.GroupedQuery(4, 2))
    torch.testing.assert_close(alone(TOKENS), plain(TOKENS), rtol=0, atol=1e-12)
    assert not torch.allclose(small_model(MIXED)(TOKENS), plain(TOKENS))


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_cached_and_taken_back(kind: str, learned: bool):
    m = small_model(replace(MIXED, learned=learned), layers=3)
    check_cached(m, kind)
    check_taken_back(m, kind, (7, 9))


def test_generated():
    check_generated(small_model(MIXED))


def test_gradients_reach_the_first_layer_and_the_shares():
    m = vt.build(vt.decoder(vocab=19, width=16, layers=3, attention=vt.ValueResidual(2, learned=True))).double()
    shares = [p for name, p in m.named_parameters() if name.endswith("values.learned")]
    assert [p.tolist() for p in shares] == [[0.5, 0.5]] * 2  # the first layer mixes nothing
    check_gradients(m, "values.learned", "blocks.0.steps.0.sublayer.qkv.weight", count=3)


def test_costs_are_those_of_grouped_query_attention():
    check_costs(vt.decoder(vocab=19, width=32, layers=2, attention=MIXED))


def test_saved_and_loaded(tmp_path):
    check_saved(small_model(replace(MIXED, learned=True)), tmp_path)


def test_a_step_runs_module_by_module():
    from vantage.inspect.kernels import step_kernel

    m = vt.build(vt.decoder(vocab=19, width=64, layers=2, attention=vt.ValueResidual(4)))
    assert any("values of another layer" in why for why in step_kernel(m, "cpu").others.values())


def test_what_cannot_be():
    spec = vt.decoder(vocab=19, width=32, layers=2, attention=MIXED)
    first, second = spec.layers
    plain = replace(first, attention=vt.GroupedQuery(4, 2))
    for layers, words in (
        ((plain, second), "which gives none"),
        ((first, replace(second, attention=replace(MIXED, kv_heads=4))), "their heads differ"),
        ((replace(first, attention=replace(MIXED, values_of=1)), second), "give an earlier one, or itself"),
    ):
        with pytest.raises(BadInput, match=words):
            replace(spec, layers=layers)
    with pytest.raises(BadInput, match="values_of=-1"):
        replace(MIXED, values_of=-1)
    with pytest.raises(Refused, match="self-attention only"):
        MIXED.build_cross(32, None)
    with pytest.raises(Refused, match="has none to mix"):
        vt.build(replace(spec, layers=(first, replace(second, source=0))))
    with pytest.raises(Refused, match="which has not run in this pass"):
        ValueMix(MIXED, 1)(torch.zeros(1, 2, 1, 8), empty_pass())


@torch.no_grad()
def test_a_later_layer_may_be_the_first_to_give():
    spec = vt.decoder(vocab=19, width=32, layers=3, attention=vt.GroupedQuery(4, 2))
    mixing = replace(spec.layers[0], attention=replace(MIXED, values_of=1))
    m = sharpen(vt.build(replace(spec, layers=(spec.layers[0], mixing, mixing))).double())
    check_cached(m, "contiguous")
    with pytest.raises(BadInput, match="layer 0 mixes its values with those of layer 1"):
        replace(spec, layers=(mixing, mixing, mixing))


def test_by_name_its_shares_are_learned():
    """Where it competes with others, nobody has said which shares are right."""
    spec = vt.decoder(vocab=19, width=32, layers=1, heads=4, attention="value-residual")
    assert spec.layers[0].attention == vt.ValueResidual(4, learned=True)
