"""GPT-2."""

from tests.parity.case import VOCAB, Case

SMALL = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 128}
ENDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}

CASES = [
    Case(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {**SMALL, **ENDS},
        {
            "inner": {"n_inner": 56},
            "unscaled": {"scale_attn_weights": False},
            "by-layer": {"scale_attn_by_inverse_layer_idx": True},
            "unscaled-by-layer": {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
            "reordered": {"reorder_and_upcast_attn": True},
            "untied": {"tie_word_embeddings": False},
            "relu": {"activation_function": "relu"},
            "gelu": {"activation_function": "gelu"},
            "silu": {"activation_function": "silu"},
            "gelu-fast": {"activation_function": "gelu_fast"},
            "eps": {"layer_norm_epsilon": 1e-2},
            "dropout": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
        },
    )
]
