"""BERT with a masked-LM head, without, and as a decoder."""

from tests.parity.case import DECODER, Case

BASE = {**DECODER, "layer_norm_eps": 1e-6, "max_position_embeddings": 160}
OPTIONS = {
    "relu": {"hidden_act": "relu"},
    "gelu_new": {"hidden_act": "gelu_new"},
    "eps": {"layer_norm_eps": 1e-2},
    "types": {"type_vocab_size": 5},
}
MASKED = Case("bert", "BertForMaskedLM", "BertConfig", BASE, OPTIONS, kind="encoder")
PLAIN = Case("bert-model", "BertModel", "BertConfig", BASE, {"one-type": {"type_vocab_size": 1}}, kind="encoder")
CAUSAL = Case("bert-decoder", "BertLMHeadModel", "BertConfig", {**BASE, "is_decoder": True}, {})

CASES = [MASKED, PLAIN, CAUSAL]
