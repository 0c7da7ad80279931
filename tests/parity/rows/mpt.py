"""MPT. What transformers does not follow (alibi_bias_max) is in test_oracle_mpt.py."""

from tests.parity.case import VOCAB, Case
from tests.parity.rows.gpt2 import ENDS

CASES = [
    Case(
        "mpt",
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCAB, "d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": 128, **ENDS},
        {
            "six-heads": {"n_heads": 6},
            "scale": {"attn_config": {"softmax_scale": 0.7}},
            "clip": {"attn_config": {"clip_qkv": 0.5}},
            "no-clip": {"attn_config": {"clip_qkv": 0.0}},
            "untied": {"tie_word_embeddings": False},
            "eps": {"layer_norm_epsilon": 1e-2},
            "dropout": {"attn_config": {"attn_pdrop": 0}, "emb_pdrop": 0.3, "resid_pdrop": 0.3},
        },
    )
]
