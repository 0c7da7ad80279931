"""LFM2: convolutions beside attention."""

from tests.parity.case import DECODER, Case, rope_options

BASE = {**DECODER, "num_key_value_heads": 2, "block_multiple_of": 8, "full_attn_idxs": [1]}
CASES = [
    Case(
        "lfm2",
        "Lfm2ForCausalLM",
        "Lfm2Config",
        BASE,
        {
            "attention-only": {"full_attn_idxs": None},
            "attention-first": {"full_attn_idxs": None, "layer_types": ["full_attention", "conv", "conv"]},
            "biases": {"conv_bias": True},
            "two-taps": {"conv_L_cache": 2},
            "multi-query": {"num_key_value_heads": 1},
            "plain-width": {"block_auto_adjust_ff_dim": False},
            "wider": {"block_ffn_dim_multiplier": 1.3},
            "untied": {"tie_word_embeddings": False},
            "eps": {"norm_eps": 1e-2},
            **rope_options(6),
        },
    )
]
