"""Ministral 3: a temperature from position 32 on, while 72 tokens are reached."""

from tests.parity.case import DECODER, SHORT, Case

BETA = {"llama_4_scaling_beta": 0.5}
YARN = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, **SHORT, **BETA}
CASES = [
    Case(
        "ministral3",
        "Ministral3ForCausalLM",
        "Ministral3Config",
        {**DECODER, "num_key_value_heads": 2, "head_dim": 16, "rope_parameters": YARN},
        {
            "silent": {"rope_parameters": None},
            "window": {"sliding_window": 9},
            "multi-head": {"num_key_value_heads": 4},
            "mscale": {"rope_parameters": {**YARN, "mscale": 0.7, "beta_fast": 20.0, "max_position_embeddings": 128}},
            "soon": {"rope_parameters": {**YARN, "original_max_position_embeddings": 7}},
            "plain-rope": {"rope_parameters": {"rope_type": "default", **SHORT, **BETA}},
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
        },
    )
]
