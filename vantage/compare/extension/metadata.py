"""What the report of an extension says besides its numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vantage.compare.extension.run import ADAPTERS, TRAINED, entries
from vantage.compare.extension_settings import ExtensionSettings

PUBLISHED = {"linear", "ntk", "yarn"}  # scalings that the papers have numbers for


def extension_metadata(
    settings: ExtensionSettings, context: int, trained_context: int | None, versions: dict[str, str], command: str
) -> dict[str, Any]:
    """``own``: the context that the model says it was trained with."""
    return {
        "title": f"{settings.model}: which scaling reads on beyond a context of {context:,}?",
        "train_length": context,
        "settings": asdict(settings) | {"context": context, "factor": settings.stretch},
        "versions": versions,
        "command": command,
        "entries": [rule + TRAINED * trained for rule, trained in entries(settings)],
        "published": ("context-extension",) if PUBLISHED & set(settings.scalings) and max(settings.times) > 1 else (),
        "notes": notes(settings, context, trained_context),
        "reach": "context",
        "samples": ("piece of text", "pieces of text"),
        "runs": "readings",
        "claims": False,
    }


def notes(settings: ExtensionSettings, context: int, trained_context: int | None) -> list[str]:
    sentences = []
    longest = settings.lengths(context)[-1]
    if trained_context is not None and context < trained_context:
        seen = (
            "It has met all of these distances in training, so unscaled it fails nowhere: "
            if longest <= trained_context
            else ""
        )
        sentences.append(
            f"The context is taken to be {context:,}, less than the {trained_context:,} that the model was trained "
            f"with. {seen}{'what is shown is what each scaling costs, not what it gains.' if seen else ''}".strip()
        )
    sentences.append(
        f"Every scaling stretches by {settings.stretch:g}, at every length; dynamic NTK by as much as the length "
        "needs. “none” is the model as it was loaded."
    )
    if "longrope" in settings.scalings:
        sentences.append(
            "LongRoPE's divisors were searched here, briefly, on text that is not measured (longrope.json): "
            "interpolation, NTK and YaRN, and a few mutations of the best. The paper's search is far longer."
        )
    if settings.lora_steps:
        sentences.append(
            f"“{TRAINED.strip()}”: after {settings.lora_steps:,} steps of rank {settings.lora_rank} on the attention, "
            f"on rows of {settings.row(context):,} tokens, {settings.lora_batch} a step. The adapters are in the "
            f"folder {ADAPTERS}/, as peft writes them. Each scaling was trained once: the luck of that is in no "
            "interval. Beside the papers stand these entries, as theirs were trained too."
        )
    sentences.append(
        "What is paired are pieces of text that no training saw, not trainings. Perplexity is of a whole window read "
        "from its beginning; “over position” is by where a token stands in the longest."
    )
    if settings.tries:
        sentences.append(
            f"Passkey: a number of five digits hidden in the piece, {settings.tries} to each piece and length at "
            f"depths that together cover it. Multi-needle: {settings.needles} such numbers at once, each asked for "
            "by name."
        )
    return sentences
