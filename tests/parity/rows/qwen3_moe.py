"""Qwen 3 with experts, on some layers and on all."""

from tests.parity.case import DECODER, Case
from tests.parity.rows.mistral import SCALED
from tests.parity.rows.qwen2 import SLIDING

CASES = [
    Case(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {
            **DECODER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
        },
        {
            "renormalised": {"norm_topk_prob": True},
            "one": {"num_experts_per_tok": 1},
            "every-second": {"decoder_sparse_step": 2},
            "spared": {"mlp_only_layers": [0, 2]},
            "no-experts": {"num_experts": 0},
            "multi-head": {"num_key_value_heads": 4},
            "biases": {"attention_bias": True},
            "window": SLIDING,
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
            **SCALED,
        },
    )
]
