"""Gemma 3n as published, with towers for images and sound: its text model is read, the towers are left alone.

What was loaded is saved as a text model (``gemma3n_text``), since the towers are not there to be saved.
"""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link
from vantage.errors import CheckpointError
from vantage.families import gemma3n
from vantage.families.family import Family
from vantage.families.gemma3_images import text_config
from vantage.families.module_links import in_language_model
from vantage.spec.model import ModelSpec

TOWERS = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.")


def spec(c: Config) -> ModelSpec:
    c.inert(
        "vision_config", "audio_config", "audio_soft_tokens_per_image", "vision_soft_tokens_per_image"
    )  # the towers'
    for kind in ("image", "audio", "boi", "eoi", "boa", "eoa"):
        c.inert(f"{kind}_token_id")  # where images and sound would stand in the text
    text = c.part("text_config")
    if text is None:
        raise CheckpointError("config.json: 'text_config' is missing: it says what the text model is")
    tied = c.flag("tie_word_embeddings", True)
    text.must_be("tie_word_embeddings", tied)
    read = gemma3n.spec(text)
    assert read.head is not None
    return replace(read, head=replace(read.head, tied=tied))


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [link.renamed(in_language_model) for link in gemma3n.links(c, spec)]


FAMILY = Family(
    "gemma3n",
    spec,
    links,
    ignored=TOWERS,
    unpacked=gemma3n.WithoutSharedKeys,
    saved_as=lambda config: text_config(config, "Gemma3nForCausalLM", "gemma3n_text"),
)
