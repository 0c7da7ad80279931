"""What the report of an extension says besides its numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vantage.compare.extension.conduct import ADAPTERS, TRAINED, entries
from vantage.compare.extension.settings import Extension

PUBLISHED = {"linear", "ntk", "yarn"}  # scalings that the papers have numbers for


def facts_of(how: Extension, context: int, own: int | None, versions: dict[str, str], command: str) -> dict[str, Any]:
    """``own``: the context that the model says it was trained with."""
    return {
        "title": f"{how.model}: which scaling reads on beyond a context of {context:,}?",
        "train_length": context,
        "settings": asdict(how) | {"context": context, "factor": how.stretch},
        "versions": versions,
        "command": command,
        "entries": [rule + TRAINED * trained for rule, trained in entries(how)],
        "published": ("context-extension",) if PUBLISHED & set(how.scalings) and max(how.times) > 1 else (),
        "notes": notes(how, context, own),
        "reach": "context",
        "samples": ("piece of text", "pieces of text"),
        "runs": "readings",
        "claims": False,
    }


def notes(how: Extension, context: int, own: int | None) -> list[str]:
    found = []
    longest = how.lengths(context)[-1]
    if own is not None and context < own:
        seen = "It has met all of these distances in training, so unscaled it fails nowhere: " if longest <= own else ""
        found.append(
            f"The context is said to be {context:,}, less than the {own:,} that the model was trained with. {seen}"
            f"{'what is shown is what each scaling costs, not what it gains.' if seen else ''}".strip()
        )
    found.append(
        f"Every scaling stretches by {how.stretch:g}, at every length; dynamic NTK by as much as the length needs. "
        "“none” is the model as it was loaded."
    )
    if "longrope" in how.scalings:
        found.append(
            "LongRoPE's divisors were searched here, briefly, on text that is not measured (longrope.json): "
            "interpolation, NTK and YaRN, and a few mutations of the best. The paper's search is far longer."
        )
    if how.lora_steps:
        found.append(
            f"“{TRAINED.strip()}”: after {how.lora_steps:,} steps of rank {how.lora_rank} on the attention, on rows of "
            f"{how.row(context):,} tokens, {how.lora_batch} a step. The adapters are in the folder {ADAPTERS}/, "
            "as peft writes them. Each scaling was trained once: the luck of that is in no interval. Beside the "
            "papers stand these entries, as theirs were trained too."
        )
    found.append(
        "What is paired are pieces of text that no training saw, not trainings. Perplexity is of a whole window read "
        "from its beginning; “over position” is by where a token stands in the longest."
    )
    if how.tries:
        found.append(
            f"Passkey: a number of five digits hidden in the piece, {how.tries} to each piece and length at depths "
            f"that together cover it. Multi-needle: {how.needles} such numbers at once, each asked for by name."
        )
    return found
