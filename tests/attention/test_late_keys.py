"""Keys that a cache keeps as they come, and that are turned when they are read (StreamingLLM)."""

from __future__ import annotations

import pytest
import torch

import vantage as vt
from tests.attention.model_checks import TOKENS, check_cached, small_model
from vantage.spec.model import AttentionConfig

ATTENTIONS: dict[str, AttentionConfig] = {
    "grouped": vt.GroupedQuery(4, 2),
    "differential": vt.Differential(4, 2),
    "latent": vt.Latent(4, kv_rank=12, nope_dim=8, rope_dim=6, value_dim=5, norm=vt.RMSNorm()),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_with_room_for_all_it_is_one_pass(name: str) -> None:
    check_cached(small_model(ATTENTIONS[name]), vt.SinkCache(2, 32, by_place=True), (5, 1, 17))


@pytest.mark.parametrize("name", ATTENTIONS)
@torch.no_grad()
def test_kept_tokens_are_seen_where_they_lie(name: str) -> None:
    """The first token and the last four are left, at the places 0 to 4: as if there had been no others."""
    m = small_model(ATTENTIONS[name], layers=1)
    cache = m.new_cache(2, kind=vt.SinkCache(1, 4, by_place=True))
    steps = [m(token, cache=cache) for token in TOKENS[:, :12].split(1, 1)]
    left = torch.cat([TOKENS[:, :1], TOKENS[:, 8:12]], 1)
    torch.testing.assert_close(steps[-1], m(left)[:, -1:], rtol=0, atol=1e-9)
