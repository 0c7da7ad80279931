"""Positions: every encoding with its figures, a token dragged elsewhere, an encoding swapped on the running model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from vantage.serve.bounds import ModelName, StrictModel, Whole
from vantage.serve.studio.encodings import choices as offers
from vantage.serve.studio.encodings import made
from vantage.serve.studio.positions.figures import Look, figures
from vantage.serve.studio.positions.swap import swapped
from vantage.serve.studio.positions.token_move import Which, dragged
from vantage.serve.studio.state import call, studio_of
from vantage.serve.studio.swapped_models import Name, Position, Values, own_encoding
from vantage.spec.registry import Fit

router = APIRouter(prefix="/studio/api")

Words = Annotated[str, Field(min_length=1, max_length=20_000)]
Index = Annotated[Whole, Field(ge=0, le=2**20)]


class ShowRequest(StrictModel):
    encoding: Name
    values: Values = Field(default_factory=dict)
    length: Annotated[Whole, Field(ge=2, le=4096)] = 256
    width: Annotated[Whole, Field(ge=2, le=512)] = 64
    heads: Annotated[Whole, Field(ge=1, le=64)] = 4


class Moved(StrictModel):
    token: Index
    to: Index


class DragRequest(StrictModel):
    model: ModelName
    text: Words
    layer: Index
    head: Index
    query: Index
    moved: Moved


class SwapRequest(StrictModel):
    model: ModelName
    text: Words
    position: Position
    tokens: Annotated[Whole, Field(ge=1, le=128)] = 32


@router.get("/positions")
async def positions() -> dict[str, Any]:
    return {
        "encodings": [
            {
                "name": choice.name,
                "title": choice.title,
                "about": choice.about,
                "parameters": [asdict(parameter) for parameter in choice.parameters],
            }
            for choice in offers().values()
        ]
    }


@router.get("/positions/of/{model}")
async def position_of(request: Request, model: str) -> dict[str, Any]:
    """The encoding that a model has, by name and values; null where it is none of those offered."""
    return {"model": model, "position": own_encoding((await studio_of(request).loaded(model)).model.spec)}


@router.post("/positions/show")
async def show(request: Request, body: ShowRequest) -> dict[str, Any]:
    look = Look(body.length, body.width, body.heads)

    def draw() -> list[dict[str, Any]]:
        encoding = made(body.encoding, body.values, Fit(look.length, look.shape.rotary_dim))
        return [asdict(figure) for figure in figures(encoding, look)]

    return {"figures": await call(request, draw, thread="figures")}


@router.post("/positions/drag")
async def drag(request: Request, body: DragRequest) -> dict[str, Any]:
    model = await studio_of(request).model(body.model)
    which = Which(body.layer, body.head, body.query)
    return await call(
        request, lambda: dragged(model, body.text, which, body.moved.token, body.moved.to), model=body.model
    )


@router.post("/positions/swap")
async def swap(request: Request, body: SwapRequest) -> dict[str, Any]:
    model = await studio_of(request).model(body.model)

    def work() -> dict[str, Any]:
        found = swapped(model, body.text, body.position, body.tokens)
        return found | {"over_position": asdict(found["over_position"])}

    return await call(request, work, model=body.model)
