"""LLaMA with every RoPE scaling."""

from tests.parity.case import DECODER, Case, rope_options

LLAMA = Case(
    "llama",
    "LlamaForCausalLM",
    "LlamaConfig",
    DECODER,
    {
        "grouped": {"num_key_value_heads": 2},
        "multi-query": {"num_key_value_heads": 1, "head_dim": 16},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "tied": {"tie_word_embeddings": True},
        "gelu": {"hidden_act": "gelu"},
        "eps": {"rms_norm_eps": 1e-2},
        **rope_options(6),
    },
)

CASES = [LLAMA]
