"""Mixtures of experts against Mixtral's and DeepSeek-V3's."""

import pytest
import torch
from transformers import DeepseekV3Config, MixtralConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from tests.attention.helpers import sharpen, vectors
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward

CLOSE = {"rtol": 0, "atol": 1e-6}  # their routers are float32


@torch.no_grad()
def copy_experts(ours, theirs):
    for e, expert in enumerate(ours.experts):
        theirs.experts.gate_up_proj[e].copy_(expert.gate_up.weight)
        theirs.experts.down_proj[e].copy_(expert.down.weight)
    theirs.gate.weight.copy_(ours.router.linear.weight)


@pytest.mark.parametrize("top_k", [1, 2, 5])
@torch.no_grad()
def test_mixtral(top_k):
    config = MixtralConfig(hidden_size=12, intermediate_size=10, num_local_experts=5, num_experts_per_tok=top_k)
    config._experts_implementation = "eager"
    theirs = MixtralSparseMoeBlock(config).double()
    ours = sharpen(Experts(FeedForward(10), count=5, router=TopK(top_k)).build(12).double())
    copy_experts(ours, theirs)
    x = vectors(2, 7, 12)
    torch.testing.assert_close(ours(x), theirs(x), **CLOSE)


@pytest.mark.parametrize("renormalise", [True, False])
@torch.no_grad()
def test_deepseek_v3_with_sigmoids_and_a_shared_expert(renormalise):
    config = DeepseekV3Config(
        hidden_size=12,
        moe_intermediate_size=10,
        n_routed_experts=6,
        num_local_experts=6,
        num_experts_per_tok=3,
        n_shared_experts=2,
        n_group=1,
        topk_group=1,
        norm_topk_prob=renormalise,
        routed_scaling_factor=1.0,
    )
    config._experts_implementation = "eager"
    theirs = DeepseekV3MoE(config).double()
    part = Experts(FeedForward(10), count=6, router=TopK(3, "sigmoid", renormalise), shared=FeedForward(20))
    ours = sharpen(part.build(12).double())
    copy_experts(ours, theirs)
    gate, up = ours.shared.gate_up.weight.chunk(2)
    theirs.shared_experts.gate_proj.weight.copy_(gate)
    theirs.shared_experts.up_proj.weight.copy_(up)
    theirs.shared_experts.down_proj.weight.copy_(ours.shared.down.weight)
    x = vectors(2, 7, 12)
    torch.testing.assert_close(ours(x), theirs(x), **CLOSE)
