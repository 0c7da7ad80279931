"""Qwen2-VL as published, with an image tower: its text model is read, the tower is left alone.

What was loaded is saved as a text model (``qwen2_vl_text``), since the tower is not there to be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vantage.checkpoints.config import Config
from vantage.families import llama, qwen2_vl
from vantage.families.family import Family
from vantage.spec.model import ModelSpec

# the tower's, and where images and films would stand in the text
TOWER = ("vision_config", "vision_start_token_id", "vision_end_token_id", "vision_token_id")
MARKS = ("image_token_id", "video_token_id")


def text_spec(c: Config, spec: Callable[[Config], ModelSpec]) -> ModelSpec:
    """The text model that a config speaks of: in ``text_config``, or in so many keys of its own (before 2025)."""
    c.inert(*TOWER, *MARKS)
    text = c.part("text_config")
    read = spec(c if text is None else text)
    tied = c.flag("tie_word_embeddings", False) or (text is not None and text.flag("tie_word_embeddings", False))
    assert read.head is not None
    return replace(read, head=replace(read.head, tied=tied))


def text_config(config: dict[str, Any], family: str) -> dict[str, Any]:
    """The config of the text model alone."""
    inner = config.get("text_config") or {key: v for key, v in config.items() if key not in (*TOWER, *MARKS)}
    tied = bool(config.get("tie_word_embeddings") or inner.get("tie_word_embeddings"))
    return {**inner, "tie_word_embeddings": tied, "architectures": None, "model_type": family}


FAMILY = Family(
    "qwen2_vl",
    lambda c: text_spec(c, qwen2_vl.spec),
    llama.links,
    ignored=("visual.", "rotary_emb.inv_freq"),
    saved_as=lambda config: text_config(config, "qwen2_vl_text"),
)
