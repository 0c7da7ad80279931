"""Qwen3.5's text model: Qwen3-Next without experts, with M-RoPE."""

from tests.parity.case import DECODER, Case

LINEAR, FULL = "linear_attention", "full_attention"
# angles that float32 holds exactly: transformers keeps them in that
MROPE = {"rope_type": "default", "rope_theta": 256.0, "mrope_interleaved": True, "mrope_section": [2, 1, 1]}
CASES = [
    Case(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        "Qwen3_5TextConfig",
        {
            **DECODER,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5},
        },
        {
            "full-only": {"layer_types": [FULL] * 4, "hidden_act": "gelu"},
            "full-first": {"layer_types": [FULL, LINEAR, LINEAR, LINEAR]},
            "as-many-keys": {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3},
            "multi-head": {"num_key_value_heads": 4},
            "whole-heads": {"rope_parameters": {**MROPE, "partial_rotary_factor": 1.0, "mrope_section": [4, 2, 2]}},
            "biases": {"attention_bias": True},
            "tied": {"tie_word_embeddings": True},
            "eps": {"rms_norm_eps": 1e-2},
        },
    )
]
EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24,
}
CASES.append(
    Case(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextConfig",
        {**{key: value for key, value in CASES[0].base.items() if key != "intermediate_size"}, **EXPERTS},
        {
            "full-first": {"layer_types": [FULL, LINEAR, LINEAR, LINEAR]},
            "all-experts": {"num_experts_per_tok": 5},
            "tied": {"tie_word_embeddings": True},
        },
    )
)
