"""Phi-3: fused matrices, LongRoPE short and long, a share of each head, a window."""

from tests.parity.case import DECODER, THETA, Case

FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [2.0, 2.2, 2.4, 2.6, 2.8, 3.0]}
LONG = {"rope_type": "longrope", **FACTORS, **THETA}
HALF = {name: values[:3] for name, values in FACTORS.items()}

CASES = [
    Case(
        "phi3",
        "Phi3ForCausalLM",
        "Phi3Config",
        {**DECODER, "num_key_value_heads": 2},
        {
            "multi-head": {"num_key_value_heads": 4},
            "window": {"sliding_window": 9},
            "partial": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, **THETA}},
            "longrope": {"rope_parameters": LONG, "original_max_position_embeddings": 32},
            "longrope-short": {"rope_parameters": LONG, "original_max_position_embeddings": 128},
            "longrope-factor": {"rope_parameters": {**LONG, "factor": 2.0}, "original_max_position_embeddings": 32},
            "longrope-attention": {
                "rope_parameters": {**LONG, "attention_factor": 1.3},
                "original_max_position_embeddings": 32,
            },
            "longrope-partial": {
                "rope_parameters": {**LONG, **HALF, "partial_rotary_factor": 0.5},
                "original_max_position_embeddings": 32,
            },
            "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
        },
    )
]
