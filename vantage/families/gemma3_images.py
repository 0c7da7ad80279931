"""Gemma 3 as published from 4B up, with an image tower: its text model is read, the tower is left alone.

What was loaded is saved as a text model (``gemma3_text``), since the tower is not there to be saved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link
from vantage.errors import CheckpointError
from vantage.families import gemma3
from vantage.families.family import Family
from vantage.spec.model import ModelSpec


def spec(c: Config) -> ModelSpec:
    c.inert("vision_config", "mm_tokens_per_image")  # the tower's
    c.inert("image_token_index", "boi_token_index", "eoi_token_index")  # where images would stand in the text
    text = c.part("text_config")
    if text is None:
        raise CheckpointError("config.json: 'text_config' is missing: it says what the text model is")
    text.must_be("final_logit_softcapping", None)  # transformers leaves it out in this class alone
    tied = c.flag("tie_word_embeddings", True)
    text.must_be("tie_word_embeddings", tied)
    read = gemma3.spec(text)
    assert read.head is not None
    return replace(read, head=replace(read.head, tied=tied))


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [link.renamed(lambda name: f"language_model.{name}") for link in gemma3.links(c, spec)]


def text_config(config: dict[str, Any], architecture: str, family: str) -> dict[str, Any]:
    """The config of the text model alone."""
    outer = {key: config[key] for key in ("tie_word_embeddings", "transformers_version") if key in config}
    return {**config["text_config"], **outer, "architectures": [architecture], "model_type": family}


FAMILY = Family(
    "gemma3",
    spec,
    links,
    ignored=("vision_tower.", "multi_modal_projector."),
    saved_as=lambda config: text_config(config, "Gemma3ForCausalLM", "gemma3_text"),
)
