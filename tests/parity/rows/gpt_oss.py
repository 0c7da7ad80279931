"""GPT-OSS: sinks, alternating windows, experts with clamps tight enough to bite."""

from tests.parity.case import DECODER, Case
from tests.parity.rows.mistral import SCALED

CASES = [
    Case(
        "gpt_oss",
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **DECODER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            "max_position_embeddings": 131072,
        },
        {
            "one": {"num_experts_per_tok": 1},
            "clamped": {"swiglu_limit": 0.5},
            "alpha": {"swiglu_alpha": 1.0},
            "global-only": {"layer_types": ["full_attention"] * 3},
            "by-layer": {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
            "no-biases": {"attention_bias": False},
            "multi-head": {"num_key_value_heads": 4},
            "tied": {"tie_word_embeddings": True},
            "eps": {"rms_norm_eps": 1e-2},
            **SCALED,
        },
    )
]
