"""Glossary: every position encoding in a sentence."""

from __future__ import annotations

from fastapi import APIRouter

from vantage.serve.studio.answers import StudioAnswer
from vantage.serve.studio.encodings import choices

router = APIRouter(prefix="/studio/api")


class GlossaryEntry(StudioAnswer):
    """A name, and what it stands for."""

    name: str
    words: str


class GlossaryAnswer(StudioAnswer):
    entries: list[GlossaryEntry]


@router.get("/glossary")
async def glossary() -> GlossaryAnswer:
    entries = [GlossaryEntry(name=choice.title, words=choice.about) for choice in choices().values()]
    return GlossaryAnswer(entries=entries)
