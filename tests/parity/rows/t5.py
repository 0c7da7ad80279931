"""T5 and T5 1.1 (gated, head not scaled), and the encoder alone."""

from tests.parity.case import VOCAB, Case

BASE = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "d_kv": 10,  # heads need not fill the width
    "d_ff": 56,
    "num_layers": 3,
    "num_heads": 4,
    "layer_norm_epsilon": 1e-6,
    "pad_token_id": 0,
    "eos_token_id": None,
    "decoder_start_token_id": 0,
}
OPTIONS = {
    "gated-gelu": {"feed_forward_proj": "gated-gelu"},
    "gated-silu": {"feed_forward_proj": "gated-silu"},
    "gelu": {"feed_forward_proj": "gelu"},
    "unscaled": {"tie_word_embeddings": False},
    "depths": {"num_layers": 2, "num_decoder_layers": 3},
    "buckets": {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 20},
    "eps": {"layer_norm_epsilon": 1e-2},
}
FULL = Case("t5", "T5ForConditionalGeneration", "T5Config", BASE, OPTIONS, kind="encoder-decoder")
ENCODER = Case("t5-encoder", "T5EncoderModel", "T5Config", BASE, {}, kind="encoder")

CASES = [FULL, ENCODER]
