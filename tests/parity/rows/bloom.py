"""BLOOM."""

from tests.parity.case import VOCAB, Case
from tests.parity.rows.gpt2 import ENDS

CASES = [
    Case(
        "bloom",
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 3, "n_head": 4, **ENDS},
        {
            "six-heads": {"n_head": 6},  # no power of two: slopes from two series
            "untied": {"tie_word_embeddings": False},
            "residual-after-norm": {"apply_residual_connection_post_layernorm": True},
            "eps": {"layer_norm_epsilon": 1e-2},
            "dropout": {"attention_dropout": 0.3, "hidden_dropout": 0.3},
            "split-training": {"pretraining_tp": 2},
        },
    )
]
