"""Kimi Linear: three layers of Kimi delta attention, then one of latent attention without positions."""

from tests.parity.case import DECODER, Case

LINEAR, FULL = "linear_attention", "full_attention"
CASES = [
    Case(
        "kimi_linear",
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        {
            **DECODER,
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
            "linear_head_dim": 8,
            "linear_num_heads": 3,
            "kv_lora_rank": 12,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "v_head_dim": 14,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
        },
        {
            "default-layers": {"layer_types": None, "num_hidden_layers": 5},
            "published": {
                "layer_types": None,
                "linear_attn_config": {
                    "full_attn_layers": [2, 4],
                    "kda_layers": [1, 3],
                    "head_dim": 8,
                    "num_heads": 4,
                    "short_conv_kernel_size": 3,
                },
            },
            "full-only": {"layer_types": [FULL] * 4, "hidden_act": "gelu"},
            "low-rank-queries": {"q_lora_rank": 16},
            "biases": {"attention_bias": True},
            "groups": {"n_group": 3, "topk_group": 2},
            "plain-weights": {"norm_topk_prob": False, "routed_scaling_factor": 1.0},
            "two-shared": {"n_shared_experts": 2},
            "dense": {"mlp_layer_types": ["dense"] * 4},
            "dense-between": {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]},
            "eps": {"rms_norm_eps": 1e-2},
        },
    )
]
