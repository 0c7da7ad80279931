"""Qwen2-VL as published: its text model and its vision tower, images in, text out. Films are not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link
from vantage.families import llama, qwen2_vl, vision_layout
from vantage.families.family import Family
from vantage.model.vision import VisionTower
from vantage.spec.model import ModelSpec

IMAGE_TOKEN = 151655


def spec(c: Config) -> ModelSpec:
    vision = vision_layout.vision_config(c)
    width = vision.whole("embed_dim", 1280, low=1)
    encoder = vision_layout.encoder(
        vision,
        c.stored,
        width=width,
        hidden=int(width * vision.number("mlp_ratio", 4.0)),
        activation="quick_gelu",
        patch=14,
        bias=False,
        inputs=None,
    )
    tower = VisionTower(c.whole("image_token_id", IMAGE_TOKEN), encoder, vision.whole("spatial_merge_size", 2, low=1))
    return vision_layout.with_tower(c, text_spec(c, qwen2_vl.spec), tower, vision.whole("hidden_size", 3584, low=1))


def text_spec(c: Config, spec: Callable[[Config], ModelSpec]) -> ModelSpec:
    """The text model that a config speaks of: in ``text_config``, or in so many keys of its own (before 2025)."""
    text = c.part("text_config")
    read = spec(c if text is None else text)
    tied = c.flag("tie_word_embeddings", False) or (text is not None and text.flag("tie_word_embeddings", False))
    assert read.head is not None
    return replace(read, head=replace(read.head, tied=tied))


def links(c: Config, spec: ModelSpec) -> list[Link]:
    block = {**vision_layout.ATTENTION, "1.sublayer.up": "mlp.fc1", "1.sublayer.down": "mlp.fc2"}
    merger = {"norm": "ln_q", "up": "mlp.0", "down": "mlp.2"}
    return [*llama.links(c, spec), *vision_layout.tower_links(spec, "visual", block, merger)]


FAMILY = Family("qwen2_vl", spec, links, ignored=("rotary_emb.inv_freq", "rotary_pos_emb.inv_freq"))
