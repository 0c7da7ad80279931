"""Gemma 3n, text: streams, sparse gates, and keys of earlier layers."""

from tests.parity.case import DECODER, Case
from tests.parity.rows.gemma3 import GLOBAL, LOCAL, ropes

BASE = {
    **DECODER,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 9,
    "layer_types": [LOCAL, LOCAL, GLOBAL] * 2,
    "vocab_size_per_layer_input": 61,
    "hidden_size_per_layer_input": 10,
    "laurel_rank": 5,
    "num_kv_shared_layers": 3,
    "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.3, 0.0, 0.0],
}
CASES = [
    Case(
        "gemma3n_text",
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        BASE,
        {
            "silent": {"layer_types": None, "activation_sparsity_pattern": None, "num_kv_shared_layers": 1},
            "none-shared": {"num_kv_shared_layers": 0},
            "most-shared": {"layer_types": [LOCAL, GLOBAL] * 3, "num_kv_shared_layers": 4},
            "two-streams": {"altup_num_inputs": 2, "altup_active_idx": 1},
            "unscaled": {"altup_correct_scale": False},
            "widths": {"intermediate_size": [40, 48, 56, 40, 48, 56]},
            "biases": {"attention_bias": True},
            "untied": {"tie_word_embeddings": False},
            "no-softcap": {"final_logit_softcapping": 1e6},
            "silu": {"hidden_activation": "silu"},
            "eps": {"rms_norm_eps": 1e-2},
            "linear": ropes(rope_type="linear", factor=8.0),
        },
    )
]
