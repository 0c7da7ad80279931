"""Small random models of Qwen2-VL, Qwen3-VL and Qwen3.5, made by transformers, and images for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.parity.case import DECODER, sharpen
from vantage.checkpoints.image_processor import ImageProcessor
from vantage.spec.images import PreparedImage

IMAGE, VIDEO = 5, 6  # token ids
PROCESSOR = ImageProcessor(patch=4, merge=2, least=64, most=4096)
CLASSES = {"qwen2_vl": "Qwen2VL", "qwen3_vl": "Qwen3VL", "qwen3_5": "Qwen3_5"}
TOWERS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"depth": 3, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "patch_size": 4},
    "qwen3_vl": {
        "depth": 3,
        "hidden_size": 32,
        "out_hidden_size": 48,
        "num_heads": 2,
        "patch_size": 4,
        "intermediate_size": 40,
        "deepstack_visual_indexes": [0, 2],
        "num_position_embeddings": 25,
    },
}
TOWERS["qwen3_5"] = {key: value for key, value in TOWERS["qwen3_vl"].items() if key != "deepstack_visual_indexes"}
TURNS = {
    "qwen2_vl": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 3]},
    "qwen3_vl": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
}
TURNS["qwen3_5"] = {**TURNS["qwen3_vl"], "rope_theta": 256.0, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
OTHERS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"max_window_layers": 3},
    "qwen3_vl": {"head_dim": 16},
    "qwen3_5": {
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
    },
}


@cache
def theirs(family: str) -> Any:
    """The model of transformers. Shared: do not change it."""
    text = {
        **DECODER,
        "num_key_value_heads": 2,
        "rope_parameters": dict(TURNS[family]),
        **OTHERS[family],
    }
    config = getattr(transformers, f"{CLASSES[family]}Config")(
        text_config=text,
        vision_config=TOWERS[family],
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=7,
        vision_end_token_id=8,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{CLASSES[family]}ForConditionalGeneration")(config).eval()
        sharpen(model)
    return model


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    """Random pixels (3, H, W)."""
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def inputs(tokens: list[int], images: list[PreparedImage], dtype: torch.dtype) -> dict[str, Tensor]:
    """What transformers takes for one prompt, whose image tokens are written out."""
    ids = torch.tensor([tokens])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == IMAGE).int(),
        "pixel_values": torch.cat([image.patches for image in images]).to(dtype),
        "image_grid_thw": torch.tensor([(1, *image.grid) for image in images]),
    }
