"""Qwen3-Next: gated delta rules beside gated attention, experts beside a shared one."""

from tests.parity.case import DECODER, Case, rope_options

LINEAR, FULL = "linear_attention", "full_attention"
CASES = [
    Case(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **DECODER,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "shared_expert_intermediate_size": 24,
        },
        {
            "interval": {"full_attention_interval": 2},
            "full-only": {"layer_types": [FULL] * 4, "hidden_act": "gelu"},
            "full-first": {"layer_types": [FULL, LINEAR, LINEAR, LINEAR]},
            "as-many-keys": {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3},
            "multi-head": {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
            "whole-heads": {"partial_rotary_factor": 1.0},
            "biases": {"attention_bias": True},
            "plain-weights": {"norm_topk_prob": False, "num_experts_per_tok": 4},
            "every-second": {"decoder_sparse_step": 2},
            "spared": {"mlp_only_layers": [0, 3]},
            "no-experts": {"num_experts": 0},
            "tied": {"tie_word_embeddings": True},
            "eps": {"rms_norm_eps": 1e-2},
            **{name: rope_options(2)[name] for name in ("theta", "linear", "yarn")},
        },
    )
]
