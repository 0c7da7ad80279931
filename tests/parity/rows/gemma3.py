"""Gemma 3, text: local and global layers, each with its own RoPE."""

from tests.parity.case import DECODER, SHORT, Case

LOCAL, GLOBAL = "sliding_attention", "full_attention"
BASE = {
    **DECODER,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 9,
    "layer_types": [LOCAL, LOCAL, GLOBAL, LOCAL],
}


def ropes(**scaling):
    """A scaling on the global layers, as Gemma 3's larger sizes have it."""
    theta = {"rope_type": "default", "rope_theta": 1_000_000.0}
    return {"rope_parameters": {LOCAL: {"rope_type": "default", "rope_theta": 1000.0}, GLOBAL: {**theta, **scaling}}}


CASES = [
    Case(
        "gemma3_text",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        BASE,
        {
            "pattern": {"layer_types": None, "sliding_window_pattern": 3},
            "global-only": {"layer_types": [GLOBAL] * 4},
            "local-only": {"layer_types": [LOCAL] * 4},
            "scalar": {"query_pre_attn_scalar": 3},
            "biases": {"attention_bias": True},
            "multi-query": {"num_key_value_heads": 1, "head_dim": 20},
            "untied": {"tie_word_embeddings": False},
            "final-softcap": {"final_logit_softcapping": 2.0},
            "silu": {"hidden_activation": "silu"},
            "eps": {"rms_norm_eps": 1e-2},
            "bases": ropes(),
            "linear": ropes(rope_type="linear", factor=8.0),
            "yarn": ropes(**{"rope_type": "yarn", "factor": 4.0, **SHORT}),
            "dynamic": {**ropes(rope_type="dynamic", factor=4.0), "max_position_embeddings": 32},
        },
    )
]
