"""Mixtral: one, two and all of the experts."""

from tests.parity.case import DECODER, Case
from tests.parity.rows.mistral import SCALED

CASES = [
    Case(
        "mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        {**DECODER, "num_key_value_heads": 2, "head_dim": 20, "num_local_experts": 5},
        {
            "one": {"num_experts_per_tok": 1},
            "all": {"num_experts_per_tok": 5},
            "multi-head": {"num_key_value_heads": 4},
            "head-dim-silent": {"head_dim": None},  # with a scaling transformers itself fails on this
            "window": {"sliding_window": 9},
            "tied": {"tie_word_embeddings": True},
            "gelu": {"hidden_act": "gelu"},
            "eps": {"rms_norm_eps": 1e-2},
            **SCALED,
        },
    )
]
