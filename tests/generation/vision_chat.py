"""A tiny model that chats about images: Qwen3-VL's or Qwen2-VL's parts with random weights, and ChatML."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

import vantage as vt
from tests.generation.folder import backend
from vantage.checkpoints.config import Config
from vantage.checkpoints.image_processor import ImageProcessor
from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.conformance.scenarios import sharpen
from vantage.families import family_of
from vantage.model import Model

PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKS = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]
TOWERS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4},
    "qwen3_vl": {
        "depth": 2,
        "hidden_size": 16,
        "out_hidden_size": 32,
        "num_heads": 2,
        "patch_size": 4,
        "intermediate_size": 24,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 9,
    },
}


@functools.cache
def vision_backend() -> Backend:
    made = Backend.from_str(backend().to_str())
    made.add_special_tokens(MARKS)
    return made


@functools.cache
def vision_chat_model(family: str = "qwen3_vl") -> Model:
    vocab = vision_backend().get_vocab_size(with_added_tokens=True)
    config = {
        "model_type": family,
        "image_token_id": vision_backend().token_to_id("<|image_pad|>"),
        "vision_config": TOWERS[family],
        "eos_token_id": 2,
        "text_config": {
            "vocab_size": vocab,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": family == "qwen3_vl",
            },
            **({"head_dim": 8} if family == "qwen3_vl" else {}),
        },
    }
    model = sharpen(vt.build(family_of(config).spec(Config(config))), 0)
    model.config = config
    model.tokenizer = Tokenizer(vision_backend, About("<|im_start|>", "<|im_end|>", PARTS))
    model.image_processor = ImageProcessor(4, 2, least=64, most=4096)
    return model


def image_token(model: Model) -> int:
    assert model.spec.vision is not None
    return model.spec.vision.token


def pixels(height: int = 16, width: int = 24, seed: int = 0) -> Tensor:
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
