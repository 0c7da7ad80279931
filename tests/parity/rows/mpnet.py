"""MPNet with a masked-LM head and without."""

from tests.parity.case import DECODER, Case

# positions are counted from tokens that are not 1, the padding
BASE = {**DECODER, "pad_token_id": 1, "bos_token_id": 0, "layer_norm_eps": 1e-6, "max_position_embeddings": 320}
OPTIONS = {"relu": {"hidden_act": "relu"}, "eps": {"layer_norm_eps": 1e-2}}
MASKED = Case("mpnet", "MPNetForMaskedLM", "MPNetConfig", BASE, OPTIONS, kind="encoder")
PLAIN = Case("mpnet-model", "MPNetModel", "MPNetConfig", BASE, {}, kind="encoder")

CASES = [MASKED, PLAIN]
