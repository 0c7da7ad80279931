"""Marian: the original Transformer."""

from tests.parity.case import VOCAB, Case

BASE = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 40,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": None,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 0,
}
OPTIONS = {
    "scaled": {"scale_embedding": True},
    "swish": {"activation_function": "swish"},
    "relu": {"activation_function": "relu"},
    "own-tables": {"share_encoder_decoder_embeddings": False},
    "two-vocabularies": {"share_encoder_decoder_embeddings": False, "vocab_size": 80, "decoder_vocab_size": VOCAB},
}
MARIAN = Case("marian", "MarianMTModel", "MarianConfig", BASE, OPTIONS, kind="encoder-decoder")

CASES = [MARIAN]
