"""Qwen 2: biases always, the window by switch, by count and by layer."""

from tests.parity.case import DECODER, Case
from tests.parity.rows.mistral import SCALED

SLIDING = {"use_sliding_window": True, "sliding_window": 9}

CASES = [
    Case(
        "qwen2",
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**DECODER, "num_key_value_heads": 2},
        {
            "multi-head": {"num_key_value_heads": 4},
            "window-unused": {"sliding_window": 9, "max_window_layers": 0},
            "upper-layers": {**SLIDING, "max_window_layers": 1},
            "by-layer": {**SLIDING, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu_pytorch_tanh"},
            "eps": {"rms_norm_eps": 1e-2},
            **SCALED,
        },
    )
]
