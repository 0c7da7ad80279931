"""Qwen3.5 as published: its text model and Qwen3-VL's vision tower, whose last layer alone is read. Films are not."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link
from vantage.errors import CheckpointError
from vantage.families import qwen3_5
from vantage.families.family import Family
from vantage.families.module_links import in_language_model
from vantage.families.qwen2_vl_images import text_spec
from vantage.families.qwen3_vl_images import tower_links, with_images
from vantage.model.vision import VisionTower
from vantage.spec.model import ModelSpec

IMAGE_TOKEN = 248056


def spec(c: Config) -> ModelSpec:
    read = with_images(c, text_spec(c, qwen3_5.spec), IMAGE_TOKEN, deep=())
    if isinstance(read.vision, VisionTower) and read.vision.deep:
        raise CheckpointError("vision_config: deepstack_visual_indexes names layers; Qwen3.5 reads none but the last")
    return read


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [*(link.renamed(in_language_model) for link in qwen3_5.links(c, spec)), *tower_links(spec)]


FAMILY = Family("qwen3_5", spec, links, ignored=("mtp.",))
