"""SmolLM3: layers without position, by interval and one by one."""

from tests.parity.case import DECODER, Case
from tests.parity.rows.mistral import SCALED
from tests.parity.rows.qwen2 import SLIDING

CASES = [
    Case(
        "smollm3",
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        {**DECODER, "num_hidden_layers": 5, "num_key_value_heads": 2},
        {
            "every-second": {"no_rope_layer_interval": 2},
            "one-by-one": {"no_rope_layers": [0, 1, 1, 0, 0]},
            "window": {**SLIDING, "no_rope_layer_interval": 2},
            "by-layer": {**SLIDING, "layer_types": ["sliding_attention", *["full_attention"] * 3, "sliding_attention"]},
            "multi-head": {"num_key_value_heads": 4},
            "biases": {"attention_bias": True, "mlp_bias": True},
            "untied": {"tie_word_embeddings": False},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
            **SCALED,
        },
    )
]
