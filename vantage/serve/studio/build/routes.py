"""Build: a model put together from parts, with its code, its sizes, and the command that trains it."""

from __future__ import annotations

import typing

from fastapi import APIRouter, Request

from vantage.serve.studio.answers import EncodingEntry
from vantage.serve.studio.build.answers import BuildAnswer
from vantage.serve.studio.build.builder import described
from vantage.serve.studio.build.settings import (
    BuildChoices,
    BuildRequest,
    BuildSettings,
    Word,
    attentions,
    normalisers,
    offered_options,
)
from vantage.serve.studio.encodings import choices as encodings
from vantage.serve.studio.state import call
from vantage.training.tasks import TASKS

router = APIRouter(prefix="/studio/api")


@router.get("/build/choices")
async def choices() -> BuildChoices:
    positions = []
    for choice in encodings().values():
        parameters = tuple(p for p in choice.parameters if (choice.name, p.name) != ("randomised", "seed"))
        entry = EncodingEntry(name=choice.name, title=choice.title, about=choice.about, parameters=parameters)
        positions.append(entry)
    return BuildChoices(
        kinds=list(typing.get_args(Word)),
        positions=positions,
        attentions=attentions(),
        normalisers=normalisers(),
        options=offered_options(),
        tasks=list(TASKS),
        defaults=BuildSettings(),
    )


@router.post("/build")
async def build(request: Request, body: BuildRequest) -> BuildAnswer:
    return await call(request, lambda: described(body.settings), thread="build")
