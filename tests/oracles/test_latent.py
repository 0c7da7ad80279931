"""Latent attention against transformers' DeepSeek-V3, in both its forms."""

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from tests.attention.helpers import Listing, attention, run, vectors
from vantage.attention import Latent
from vantage.model.norms import RMSNorm
from vantage.position import Rope
from vantage.spec.positions import Positions


def both(q_rank, interleaved):
    config = DeepseekV3Config(
        hidden_size=24,
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=q_rank,
        kv_lora_rank=10,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        attention_bias=q_rank is not None,
        rope_interleave=interleaved,
    )
    config._attn_implementation = "eager"
    theirs = DeepseekV3Attention(config, 0).double()
    ours = attention(
        Latent(3, 10, 6, 4, 5, norm=RMSNorm(1e-6), q_rank=q_rank, bias=q_rank is not None),
        24,
        parts=Rope(pairing="adjacent" if interleaved else "halves").parts(causal=True),
    )
    with torch.no_grad():
        if q_rank is None:
            theirs.q_proj.weight.copy_(ours.q_up.weight)
        else:
            theirs.q_a_proj.load_state_dict(ours.q_down.state_dict())
            theirs.q_a_layernorm.weight.copy_(ours.q_norm.weight)
            theirs.q_b_proj.weight.copy_(ours.q_up.weight)
        theirs.kv_a_proj_with_mqa.load_state_dict(ours.kv_down.state_dict())
        theirs.kv_a_layernorm.weight.copy_(ours.kv_norm.weight)
        theirs.kv_b_proj.weight.copy_(torch.cat([ours.k_up, ours.v_up], 1).flatten(0, 1))
        theirs.o_proj.load_state_dict(ours.out.state_dict())
    return ours, theirs, DeepseekV3RotaryEmbedding(config)


@pytest.mark.parametrize("q_rank", [None, 8])
@pytest.mark.parametrize("interleaved", [True, False])
@torch.no_grad()
def test_latent_attention_is_deepseeks(q_rank, interleaved):
    ours, theirs, rotary = both(q_rank, interleaved)
    x = 2 * vectors(2, 6, 24)
    mask = torch.full((1, 1, 6, 6), -torch.inf, dtype=torch.float64).triu(1)
    wanted, _ = theirs(x, rotary(x, torch.arange(6)[None]), mask)
    close = {"rtol": 0, "atol": 5e-6}  # their norms and angles are float32
    for absorbed in (True, False):
        ours.absorbing_is_cheaper = lambda T, S, absorbed=absorbed: absorbed
        torch.testing.assert_close(run(ours, x), wanted, **close)
        cache = Listing()
        steps = [
            run(ours, x[:, t : t + n], pos=Positions.arange(2, n, t), caches=[cache])
            for t, n in ((0, 4), (4, 1), (5, 1))
        ]
        torch.testing.assert_close(torch.cat(steps, 1), wanted, **close)
