"""Qwen3-VL as published, with an image tower: its text model is read, the tower is left alone.

What was loaded is saved as a text model (``qwen3_vl_text``), since the tower is not there to be saved.
"""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link
from vantage.families import qwen3, qwen3_vl
from vantage.families.family import Family
from vantage.families.module_links import in_language_model, renamed
from vantage.families.qwen2_vl_images import text_config, text_spec
from vantage.spec.model import ModelSpec


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [renamed(link, in_language_model) for link in qwen3.links(c, spec)]


FAMILY = Family(
    "qwen3_vl",
    lambda c: text_spec(c, qwen3_vl.spec),
    links,
    ignored=("model.visual.",),
    saved_as=lambda config: text_config(config, "qwen3_vl_text"),
)
