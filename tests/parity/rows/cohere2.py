"""Cohere 2: window layers with RoPE, global ones without, parts side by side."""

from tests.parity.case import DECODER, Case, rope_options

LOCAL, GLOBAL = "sliding_attention", "full_attention"
CASES = [
    Case(
        "cohere2",
        "Cohere2ForCausalLM",
        "Cohere2Config",
        {**DECODER, "num_hidden_layers": 4, "num_key_value_heads": 2, "sliding_window": 9},
        {
            "pattern": {"sliding_window_pattern": 2},
            "types": {"layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL]},
            "global-only": {"layer_types": [GLOBAL] * 4},
            "multi-head": {"num_key_value_heads": 4},
            "biases": {"attention_bias": True},
            "logit-scale": {"logit_scale": 0.25},
            "untied": {"tie_word_embeddings": False},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"layer_norm_eps": 1e-2},
            **rope_options(6),
        },
    )
]
