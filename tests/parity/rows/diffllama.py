"""DiffLlama: pairs of heads, with and without groups."""

from tests.parity.case import DECODER, Case, rope_options

CASES = [
    Case(
        "diffllama",
        "DiffLlamaForCausalLM",
        "DiffLlamaConfig",
        {**DECODER, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64},
        {
            "multi-head": {"num_key_value_heads": 8},
            "one-pair": {"num_key_value_heads": 2},
            "head-width": {"head_dim": 12},
            "biases": {"attention_bias": True},
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
            **rope_options(4),
        },
    )
]
