"""DeepSeek-V3.2 and GLM-5: fewer keys chosen than there are tokens, or a wrong indexer would not show."""

from tests.parity.case import Case
from tests.parity.rows.deepseek import LATENT, OPTIONS

# 16 heads: with few, all their scores of a key are cut to 0 together, and of equal keys transformers takes any
INDEXED = {**LATENT, "n_group": 4, "topk_group": 2, "index_topk": 7, "index_n_heads": 16, "index_head_dim": 16}
CHOICE = {
    "one-key": {"index_topk": 1},
    "all-keys": {"index_topk": 128},
    "whole-key-turns": {"index_head_dim": 8},
    "experts-between": {"mlp_layer_types": ["sparse", "dense", "sparse"]},
}
COMMON = {name: change for name, change in OPTIONS.items() if name != "direct-queries"}

CASES = [
    Case("deepseek_v32", "DeepseekV32ForCausalLM", "DeepseekV32Config", INDEXED, {**COMMON, **CHOICE}),
    Case(
        "glm_moe_dsa",
        "GlmMoeDsaForCausalLM",
        "GlmMoeDsaConfig",
        INDEXED,
        {
            **CHOICE,
            "shared": {"indexer_types": ["full", "shared", "shared"]},
            "shared-last": {"index_topk_pattern": "FFS"},
            "every-second": {"num_hidden_layers": 4, "index_topk_freq": 2},
            "biases": COMMON["biases"],
        },
    ),
]
