"""GPT-1."""

from tests.parity.case import Case
from tests.parity.rows.gpt2 import ENDS, SMALL

CASES = [
    Case(
        "openai-gpt",
        "OpenAIGPTLMHeadModel",
        "OpenAIGPTConfig",
        {**SMALL, **ENDS},
        {
            "relu": {"afn": "relu"},
            "silu": {"afn": "silu"},
            "swish": {"afn": "swish"},
            "untied": {"tie_word_embeddings": False},
            "eps": {"layer_norm_epsilon": 1e-2},
            "dropout": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
        },
    )
]
