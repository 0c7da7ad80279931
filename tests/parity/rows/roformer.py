"""RoFormer with a masked-LM head, without, and as a decoder."""

from tests.parity.case import DECODER, Case

BASE = {**DECODER, "layer_norm_eps": 1e-6, "max_position_embeddings": 160}
NARROW = {"embedding_size": 20}
OPTIONS = {
    "relu": {"hidden_act": "relu"},
    "eps": {"layer_norm_eps": 1e-2},
    "types": {"type_vocab_size": 5},
    "narrow": NARROW,
}
MASKED = Case("roformer", "RoFormerForMaskedLM", "RoFormerConfig", BASE, OPTIONS, kind="encoder")
PLAIN = Case("roformer-model", "RoFormerModel", "RoFormerConfig", BASE, {"narrow": NARROW}, kind="encoder")
CAUSAL = Case(
    "roformer-decoder", "RoFormerForCausalLM", "RoFormerConfig", {**BASE, "is_decoder": True}, {"narrow": NARROW}
)

CASES = [MASKED, PLAIN, CAUSAL]
