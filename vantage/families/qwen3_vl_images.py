"""Qwen3-VL as published: its text model and its vision tower, images in, text out. Films are not read.

Three layers of the tower are handed to the first layers of the text model as well (DeepStack), and a learned grid is
added to the patches before they are turned by row and column.
"""

from __future__ import annotations

from math import isqrt

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Same
from vantage.errors import CheckpointError
from vantage.families import qwen3, qwen3_vl, vision_layout
from vantage.families.family import Family
from vantage.families.module_links import in_language_model
from vantage.families.qwen2_vl_images import IMAGE_TOKEN, text_spec
from vantage.model.vision import VisionTower
from vantage.position import LearnedGrid
from vantage.spec.model import ModelSpec


def spec(c: Config) -> ModelSpec:
    return with_images(c, text_spec(c, qwen3_vl.spec), IMAGE_TOKEN, deep=(8, 16, 24))


def with_images(c: Config, text: ModelSpec, image_token: int, deep: tuple[int, ...]) -> ModelSpec:
    """A text model with this tower. ``image_token`` and ``deep``: where the config is silent."""
    vision = vision_layout.vision_config(c)
    places = vision.whole("num_position_embeddings", 2304, low=1)
    if isqrt(places) ** 2 != places:
        raise CheckpointError(f"vision_config: num_position_embeddings is {places}; wanted a square, side by side")
    encoder = vision_layout.encoder(
        vision,
        c.stored,
        width=vision.whole("hidden_size", 1152, low=1),
        hidden=vision.whole("intermediate_size", 4304, low=1),
        activation="gelu_pytorch_tanh",
        patch=16,
        bias=True,
        inputs=LearnedGrid(isqrt(places)),
    )
    merge = vision.whole("spatial_merge_size", 2, low=1)
    deep = tuple(map(int, vision.numbers("deepstack_visual_indexes", deep)))
    tower = VisionTower(c.whole("image_token_id", image_token), encoder, merge, deep=deep)
    return vision_layout.with_tower(c, text, tower, vision.whole("out_hidden_size", 3584, low=1))


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [*(link.renamed(in_language_model) for link in qwen3.links(c, spec)), *tower_links(spec)]


def tower_links(spec: ModelSpec) -> list[Link]:
    block = {**vision_layout.ATTENTION, "1.sublayer.up": "mlp.linear_fc1", "1.sublayer.down": "mlp.linear_fc2"}
    merger = {"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"}
    return [
        *vision_layout.tower_links(spec, "model.visual", block, merger),
        Same("vision.encoder.embed.inputs.0.table", "model.visual.pos_embed.weight"),
    ]


FAMILY = Family("qwen3_vl", spec, links)
