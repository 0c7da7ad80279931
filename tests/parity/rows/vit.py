"""ViT with a classifier and without."""

from tests.parity.case import DECODER, Case

BASE = {
    **{key: DECODER[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
    "image_size": 16,
    "patch_size": 4,
    "layer_norm_eps": 1e-6,
}
OPTIONS = {
    "labels": {"num_labels": 7},
    "no-qkv-bias": {"qkv_bias": False},
    "gray": {"num_channels": 1},
    "oblong": {"image_size": [12, 20], "patch_size": [3, 5]},
    "remainder": {"image_size": 18},
    "relu": {"hidden_act": "relu"},
    "eps": {"layer_norm_eps": 1e-2},
}
POOLED = {"pooler": {"pooler_act": "relu", "pooler_output_size": 12}}
CLASSIFIER = Case("vit", "ViTForImageClassification", "ViTConfig", BASE, OPTIONS, kind="image")
PLAIN = Case("vit-model", "ViTModel", "ViTConfig", BASE, POOLED, kind="image")

CASES = [CLASSIFIER, PLAIN]
