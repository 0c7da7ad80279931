"""Keys that the configs of published encoders and encoder-decoders carry: none of them is refused."""

from __future__ import annotations

import pytest

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.families import family_of
from vantage.model.feed_forward import FeedForward

BERT = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
MULTILINGUAL = {
    **BERT,
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "vocab_size": 119547,
}
OF_TEXT = ("max_position_embeddings", "type_vocab_size", "vocab_size", "position_embedding_type")
VIT = {
    **{key: value for key, value in BERT.items() if key not in OF_TEXT},
    "model_type": "vit",
    "image_size": 224,
    "num_channels": 3,
    "patch_size": 16,
    "qkv_bias": True,
    "encoder_stride": 16,
    "id2label": {str(i): f"LABEL_{i}" for i in range(1000)},
    "label2id": {f"LABEL_{i}": i for i in range(1000)},
}
T5 = {
    "architectures": ["T5WithLMHeadModel"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"num_beams": 4}},
    "vocab_size": 32128,
}
FLAN = {
    **T5,
    "d_ff": 1024,
    "dense_act_fn": "gelu_new",
    "feed_forward_proj": "gated-gelu",
    "is_gated_act": True,
    "num_decoder_layers": 8,
    "num_heads": 6,
    "num_layers": 8,
    "relative_attention_max_distance": 128,
    "tie_word_embeddings": False,
    "use_cache": True,
}
MARIAN = {
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0,
    "bad_words_ids": [[58100]],
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "d_model": 512,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "decoder_start_token_id": 58100,
    "decoder_vocab_size": 58101,
    "dropout": 0.1,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 6,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "max_length": 512,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 4,
    "num_hidden_layers": 6,
    "pad_token_id": 58100,
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True,
    "use_cache": True,
    "vocab_size": 58101,
}


def read(config, *tensors):
    c = Config(config, tensors=tensors)
    spec = family_of(config).spec(c)
    family_of(config).links(c, spec)
    c.settle()
    return spec


@pytest.mark.parametrize("config", [BERT, MULTILINGUAL, VIT, T5, FLAN, MARIAN], ids=lambda c: c["model_type"])
def test_every_key_is_understood(config):
    spec = read(config, "decoder.final_layer_norm.weight")
    assert spec.width == config.get("d_model", config.get("hidden_size"))


def test_what_they_say():
    flan = read(FLAN, "decoder.final_layer_norm.weight", "lm_head.weight")
    assert flan.layers[0].ffn == FeedForward(1024, "gelu_tanh", gated=True)
    assert not flan.head.tied
    assert flan.head.scale == 1.0
    first = read(T5, "decoder.final_layer_norm.weight")
    assert first.layers[0].ffn == FeedForward(2048, "relu", gated=False)
    assert first.head.tied
    assert first.head.scale == 512**-0.5
    assert isinstance(first.layers[0].attention, GroupedQuery)
    assert first.layers[0].attention.scores.scale == 1.0
    assert read(MARIAN).embedding.scale == 512**0.5
    assert read(VIT, "classifier.weight").vocab == 1000
