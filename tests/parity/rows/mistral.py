"""Mistral: a window on every layer, narrower than the text."""

from tests.parity.case import DECODER, SHORT, THETA, Case

BASE = {**DECODER, "num_key_value_heads": 2, "sliding_window": 9}
# scalings that every family in LLaMA's layout reads alike; the whole set is in llama's row
SCALED = {
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, **THETA}, "max_position_embeddings": 32},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **SHORT}},
}

CASES = [
    Case(
        "mistral",
        "MistralForCausalLM",
        "MistralConfig",
        BASE,
        {
            "no-window": {"sliding_window": None},
            "window-of-one": {"sliding_window": 1},
            "multi-head": {"num_key_value_heads": 4},
            "head-dim": {"head_dim": 20},
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
            **SCALED,
        },
    )
]
