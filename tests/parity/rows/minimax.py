"""MiniMax: lightning attention beside softmax attention, and factors before the residual."""

from tests.parity.case import DECODER, Case
from tests.parity.rows.mistral import SCALED

LINEAR, FULL = "linear_attention", "full_attention"

CASES = [
    Case(
        "minimax",
        "MiniMaxForCausalLM",
        "MiniMaxConfig",
        {**DECODER, "num_key_value_heads": 2, "head_dim": 20, "num_local_experts": 4, "block_size": 16},
        {
            "lightning-ends": {"layer_types": [LINEAR, FULL, LINEAR]},
            "lightning-alone": {"layer_types": [LINEAR] * 3},
            "no-lightning": {"layer_types": [FULL] * 3, "hidden_act": "gelu"},
            "three-heads": {"num_attention_heads": 3, "num_key_value_heads": 3},
            "head-dim-silent": {"head_dim": None},  # with a scaling transformers itself fails on this
            "one-block": {"block_size": 64},
            "residual": {f"{part}_alpha_factor": 2.5 for part in ("full_attn", "linear_attn", "mlp")},
            "one": {"num_experts_per_tok": 1},
            "window": {"sliding_window": 9},
            "tied": {"tie_word_embeddings": True},
            "eps": {"rms_norm_eps": 1e-2},
            **SCALED,
        },
        computed=("slope_rate", "query_decay", "key_decay", "diagonal_decay"),
    )
]
