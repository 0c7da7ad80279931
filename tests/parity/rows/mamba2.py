"""Mamba-2 and Bamba: states alone, and beside attention."""

from tests.parity.case import DECODER, VOCAB, Case

MAMBA = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_heads": 6,
    "head_dim": 8,
    "state_size": 10,
    "n_groups": 2,
    "chunk_size": 16,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
BAMBA = {
    **DECODER,
    "num_key_value_heads": 2,
    "attn_layer_indices": [1],
    "mamba_n_heads": 6,
    "mamba_d_state": 10,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}
CASES = [
    Case(
        "mamba2",
        "Mamba2ForCausalLM",
        "Mamba2Config",
        MAMBA,
        {
            "one-group": {"n_groups": 1},
            "group-each": {"n_groups": 6},
            "biases": {"use_bias": True},
            "no-conv-bias": {"use_conv_bias": False},
            "taps": {"conv_kernel": 3},
            "expand": {"expand": 1, "num_heads": 3, "n_groups": 1},
            "limits": {"time_step_limit": (0.5, 1.0)},
            "tied": {"tie_word_embeddings": True},
            "eps": {"layer_norm_epsilon": 1e-2},
        },
    ),
    Case(
        "bamba",
        "BambaForCausalLM",
        "BambaConfig",
        BAMBA,
        {
            "attention-ends": {"attn_layer_indices": [0, 2]},
            "biases": {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True},
            "no-conv-bias": {"mamba_conv_bias": False},
            "limits": {"time_step_limit": (0.5, 1.0)},
            "tied": {"tie_word_embeddings": True},
            "eps": {"rms_norm_eps": 1e-2},
        },
    ),
]
