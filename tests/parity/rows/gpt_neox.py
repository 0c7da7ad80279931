"""GPT-NeoX with its share of RoPE, and the scalings on that share."""

from tests.parity.case import DECODER, SHORT, THETA, Case

# heads of 24, of which the default quarter would be 6: three pairs
BASE = {**DECODER, "hidden_size": 96}

CASES = [
    Case(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        BASE,
        {
            "sequential": {"use_parallel_residual": False},
            "no-biases": {"attention_bias": False},
            "sequential-no-biases": {"use_parallel_residual": False, "attention_bias": False},
            "tied": {"tie_word_embeddings": True},
            "gelu-new": {"hidden_act": "gelu_new"},
            "eps": {"layer_norm_eps": 1e-2},
            "dropout": {"attention_dropout": 0.3, "hidden_dropout": 0.3},
            "half": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, **THETA}},
            "whole": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0, "rope_theta": 500.0}},
            "old-names": {"rotary_pct": 0.5, "rotary_emb_base": 500},
            "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}},
            "dynamic": {
                "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, **THETA},
                "max_position_embeddings": 32,
            },
            "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **SHORT}},
        },
    )
]
