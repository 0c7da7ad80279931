"""Qwen 3: norms on queries and keys, heads of their own width."""

from tests.parity.case import DECODER, Case
from tests.parity.rows.mistral import SCALED
from tests.parity.rows.qwen2 import SLIDING

CASES = [
    Case(
        "qwen3",
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**DECODER, "num_key_value_heads": 2, "head_dim": 16},
        {
            "multi-head": {"num_key_value_heads": 4},
            "biases": {"attention_bias": True},
            "upper-layers": {**SLIDING, "max_window_layers": 1},
            "by-layer": {**SLIDING, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
            **SCALED,
        },
    )
]
