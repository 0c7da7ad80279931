"""Positions: every encoding with its figures, a token dragged elsewhere, an encoding swapped on the running model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from vantage.serve.bounds import ModelName, StrictModel, Whole
from vantage.serve.studio.answers import EncodingEntry
from vantage.serve.studio.encodings import choices, make_encoding
from vantage.serve.studio.positions.answers import (
    EncodingFigures,
    EncodingList,
    EncodingSwapAnswer,
    ModelEncoding,
    TokenMoveAnswer,
)
from vantage.serve.studio.positions.encoding_swap import swap_encoding
from vantage.serve.studio.positions.figures import FigureSize, figures
from vantage.serve.studio.positions.token_move import WeightRow, move_token
from vantage.serve.studio.state import call, studio_of
from vantage.serve.studio.swapped_models import EncodingRequest, Name, Values, own_encoding
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


class TokenMove(StrictModel):
    token: Index
    to: Index


class DragRequest(StrictModel):
    model: ModelName
    text: Words
    layer: Index
    head: Index
    query: Index
    moved: TokenMove


class SwapRequest(StrictModel):
    model: ModelName
    text: Words
    position: EncodingRequest
    tokens: Annotated[Whole, Field(ge=1, le=128)] = 32


@router.get("/positions")
async def positions() -> EncodingList:
    entries = [
        EncodingEntry(name=c.name, title=c.title, about=c.about, parameters=c.parameters) for c in choices().values()
    ]
    return EncodingList(encodings=entries)


@router.get("/positions/of/{model}")
async def position_of(request: Request, model: str) -> ModelEncoding:
    spec = (await studio_of(request).loaded(model)).model.spec
    return ModelEncoding(model=model, position=own_encoding(spec))


@router.post("/positions/show")
async def show(request: Request, body: ShowRequest) -> EncodingFigures:
    size = FigureSize(body.length, body.width, body.heads)

    def draw() -> EncodingFigures:
        encoding = make_encoding(body.encoding, body.values, Fit(size.length, size.shape.rotary_dim))
        return EncodingFigures(figures=figures(encoding, size))

    return await call(request, draw, thread="figures")


@router.post("/positions/drag")
async def drag(request: Request, body: DragRequest) -> TokenMoveAnswer:
    model = await studio_of(request).model(body.model)
    which = WeightRow(body.layer, body.head, body.query)
    return await call(
        request, lambda: move_token(model, body.text, which, body.moved.token, body.moved.to), model=body.model
    )


@router.post("/positions/swap")
async def swap(request: Request, body: SwapRequest) -> EncodingSwapAnswer:
    model = await studio_of(request).model(body.model)
    return await call(request, lambda: swap_encoding(model, body.text, body.position, body.tokens), model=body.model)
