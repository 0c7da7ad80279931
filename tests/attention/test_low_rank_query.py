"""Low-rank queries: a worked number, Step-3's rule written out, caches, gradients, costs, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import vantage as vt
from tests.attention.helpers import F64
from tests.attention.model_checks import (
    check_cached,
    check_costs,
    check_generated,
    check_gradients,
    check_saved,
    check_taken_back,
    small_model,
)
from vantage.errors import BadInput, Refused
from vantage.model.maps import linear_maps

MFA = vt.LowRankQuery(6, head_dim=16, rank=5, norm=vt.RMSNorm(1e-5))  # 6 heads of 16 in a width of 32


def test_a_worked_number():
    """x = (3, 4) down to (3, 4), whose root mean square is √12.5, up by (1, 1): 7 / 3.5355 = 1.9799."""
    model = vt.build(
        vt.decoder(vocab=3, width=2, layers=1, attention=vt.LowRankQuery(1, head_dim=1, rank=2), position="none")
    )
    attention = model.double().blocks[0].sublayers[0]
    with torch.no_grad():
        attention.qkv.weight[:2] = torch.eye(2)
        attention.queries.up.weight.fill_(1.0)
    q = attention.project(torch.tensor([[[3.0, 4.0]]], dtype=F64))[0]
    assert float(q.detach()) == pytest.approx(1.9799, abs=1e-4)


@torch.no_grad()
def test_step_3s_rule_written_out():
    """As vLLM's step3_text has it: a map to the small vector, a key and a value; a norm; a map to all query heads."""
    m = small_model(MFA, layers=1, position="none")
    attention = m.blocks[0].sublayers[0]
    x = torch.randn(2, 7, 32, dtype=F64, generator=torch.Generator().manual_seed(0))
    small, k, v = attention.qkv(x).split((5, 16, 16), -1)
    weight = attention.queries.norm.weight
    small = small * (small.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    q = (small @ attention.queries.up.weight.T).view(2, 7, 6, 16).transpose(1, 2)
    one_for_all = (t[:, None].expand(2, 6, 7, 16) for t in (k, v))
    heads = F.scaled_dot_product_attention(q, *one_for_all, is_causal=True)
    want = attention.out(heads.transpose(1, 2).flatten(2))
    from tests.attention.helpers import run

    torch.testing.assert_close(run(attention, x), want, rtol=1e-9, atol=1e-9)


def test_the_cache_holds_one_head_and_queries_have_few_weights():
    m = small_model(MFA)
    assert MFA.cache_shape(32) == vt.GroupedQuery(6, 1, 16).cache_shape(32)
    attention = m.blocks[0].sublayers[0]
    assert attention.qkv.weight.shape == (5 + 16 + 16, 32)
    assert attention.queries.up.weight.shape == (6 * 16, 5)
    assert vt.LowRankQuery(4).describe(32) == ("multi-query, 4 / 1 × 8", "queries of rank 8")


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_cached_and_taken_back(kind: str):
    m = small_model(MFA)
    check_cached(m, kind)
    check_taken_back(m, kind, (7, 9))


def test_generated():
    check_generated(small_model(MFA))


def test_gradients():
    m = vt.build(vt.decoder(vocab=19, width=8, layers=1, attention=vt.LowRankQuery(2, rank=3))).double()
    check_gradients(m, "queries.up.weight", "qkv.weight", count=2)


def test_costs_are_what_torch_counts():
    check_costs(vt.decoder(vocab=19, width=32, layers=2, attention=MFA))


def test_saved_and_loaded(tmp_path):
    check_saved(small_model(MFA), tmp_path)


def test_queries_can_be_read_and_replaced():
    """They stand behind the second map, not in the first one's columns; both maps are attention's."""
    m = small_model(MFA)
    assert m.blocks[0].sublayers[0].activations()["q"][:4] == ("queries", 0, 96, 6)
    roles = {one.name.rpartition(".")[2]: one.role for one in linear_maps(m)}
    assert roles["up"] == roles["qkv"] == roles["out"] == "attention"


def test_a_step_runs_module_by_module():
    from vantage.inspect.kernels import step_kernel

    m = vt.build(vt.decoder(vocab=19, width=64, layers=2, attention=vt.LowRankQuery(4)))
    assert any("low-rank queries" in why for why in step_kernel(m, "cpu").others.values())


def test_what_cannot_be():
    with pytest.raises(BadInput, match="rank=0"):
        vt.LowRankQuery(4, rank=0)
    with pytest.raises(Refused, match="self-attention only"):
        MFA.build_cross(32, None)
