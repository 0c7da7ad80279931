"""LLaMA with every RoPE scaling."""

from tests.parity.case import DECODER, SHORT, THETA, Case

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
        "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}},
        "dynamic": {
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, **THETA},
            "max_position_embeddings": 32,
        },
        "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **SHORT}},
        "llama3": {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                **SHORT,
            }
        },
        "longrope": {
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                "long_factor": [2.0, 2.2, 2.4, 2.6, 2.8, 3.0],
                "factor": 4.0,
                **SHORT,
            }
        },
    },
)

CASES = [LLAMA]
