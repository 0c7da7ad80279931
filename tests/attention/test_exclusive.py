"""Exclusive self-attention: worked numbers, NeoMME's own module, caches, gradients, costs, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import NeoMMEConfig
from transformers.models.neomme.modeling_neomme import NeoMMEExclusiveSelfAttention

import vantage as vt
from tests.attention.helpers import F64, vectors
from tests.attention.model_checks import (
    TOKENS,
    check_cached,
    check_costs,
    check_generated,
    check_saved,
    check_taken_back,
)
from vantage.conformance.scenarios import sharpen
from vantage.errors import Refused
from vantage.spec.parts import Shape

SHAPE = Shape(width=8, heads=4, kv_heads=2, key_dim=16, value_dim=16, rotary_dim=16)


def spec(**options) -> vt.ModelSpec:
    return vt.decoder(
        **{"vocab": 19, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "output": "exclusive"} | options
    )


def small(**options) -> vt.Model:
    return sharpen(vt.build(spec(**options)).double())


@pytest.mark.parametrize(("share", "want"), [(0.0, [3.0, 4.0]), (0.5, [1.5, 4.0]), (1.0, [0.0, 4.0])])
def test_the_worked_number(share, want):
    """o = (3, 4), the token's own value (2, 0): of the 3 along it, a share goes."""
    part = vt.Exclusive().build(Shape(2, 1, 1, 2, 2, 2)).double()
    with torch.no_grad():
        part.alpha.fill_(torch.tensor(share, dtype=F64).atanh().clamp(max=20.0))
    out, value = (torch.tensor(v, dtype=F64)[None, None, None] for v in ([3.0, 4.0], [2.0, 0.0]))
    torch.testing.assert_close(part.with_values(out, value)[0, 0, 0], torch.tensor(want, dtype=F64))


def test_neommes_own_module():
    config = NeoMMEConfig(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    theirs, ours = NeoMMEExclusiveSelfAttention(config).double(), vt.Exclusive().build(SHAPE).double()
    with torch.no_grad():
        theirs.alpha.copy_(vectors(4))
        ours.alpha.copy_(theirs.alpha)
    out, values = vectors(2, 4, 5, 16, seed=1), vectors(2, 2, 5, 16, seed=2)
    want = theirs(out.transpose(1, 2), values).transpose(1, 2)
    torch.testing.assert_close(ours.with_values(out, values), want, rtol=1e-6, atol=1e-6)  # theirs rounds v to float32


def test_nothing_seen_stays_nothing_and_no_value_takes_nothing():
    part = vt.Exclusive().build(SHAPE).double()
    torch.nn.init.constant_(part.alpha, 1.0)
    out, values = vectors(1, 4, 3, 16), vectors(1, 2, 3, 16, seed=1)
    assert not part.with_values(torch.zeros_like(out), values).any()
    assert torch.equal(part.with_values(out, torch.zeros_like(values)), out)


@torch.no_grad()
def test_it_begins_as_plain_attention_and_takes_the_layers_own_values():
    fresh, plain = vt.build(spec()), vt.build(spec(output=None))
    plain.load_state_dict({name: p for name, p in fresh.state_dict().items() if not name.endswith("alpha")})
    assert torch.equal(fresh(TOKENS), plain(TOKENS))
    model = small(layers=1)  # of one token, which attends to itself alone: (1 - tanh α) v is left
    attention = model.blocks[0].sublayers[0]
    inputs: list[torch.Tensor] = []
    heads: list[torch.Tensor] = []
    attention.qkv.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    attention.out.register_forward_pre_hook(lambda module, given: heads.append(given[0]))
    model(TOKENS[:1, :1])
    value = attention.project(inputs[0])[2].repeat_interleave(2, 1)
    share = attention.output[0].alpha.tanh()[:, None, None]
    torch.testing.assert_close(heads[0].view(1, 4, 1, 8), (1 - share) * value)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_cached_and_taken_back(kind: str):
    check_cached(small(), kind)
    check_taken_back(small(), kind, (7, 9))


def test_generated_and_saved(tmp_path):
    check_generated(small())
    check_saved(small(), tmp_path)


def test_gradients():
    part = vt.Exclusive().build(SHAPE).double()
    out, values = vectors(1, 4, 3, 16).requires_grad_(), vectors(1, 2, 3, 16, seed=1).requires_grad_()
    alpha = vectors(4, seed=2).requires_grad_()

    def removed(o: torch.Tensor, v: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        with torch.nn.utils.stateless._reparametrize_module(part, {"alpha": a}):
            return part.with_values(o, v)

    assert torch.autograd.gradcheck(removed, (out, values, alpha))


def test_costs_are_those_of_grouped_query_attention():
    check_costs(spec())


def test_it_wants_values_of_its_own():
    shared = spec()
    first, second = shared.layers
    with pytest.raises(Refused, match="layer 1 reads the values of layer 0, and its output transform wants its own"):
        vt.build(replace(shared, layers=(first, replace(second, source=0))))
    assert vt.build(replace(shared, layers=(first, replace(second, source=0, output=()))))
