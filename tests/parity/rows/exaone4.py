"""EXAONE 4: norms after each part, RoPE where there is a window."""

from tests.parity.case import DECODER, Case, rope_options

LOCAL, GLOBAL = "sliding_attention", "full_attention"
CASES = [
    Case(
        "exaone4",
        "Exaone4ForCausalLM",
        "Exaone4Config",
        {**DECODER, "num_hidden_layers": 4, "num_key_value_heads": 2, "sliding_window": 9},
        {
            "pattern": {"sliding_window_pattern": 2},
            "letters": {"sliding_window_pattern": "LG", "layer_types": [LOCAL, GLOBAL, LOCAL, GLOBAL]},
            "no-window": {"layer_types": [GLOBAL] * 4, "sliding_window": None},
            "global-only": {"layer_types": [GLOBAL] * 4},
            "multi-head": {"num_key_value_heads": 4},
            "head-dim": {"head_dim": 16},
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
            **rope_options(6),
        },
    )
]
