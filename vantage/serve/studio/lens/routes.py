"""Lens: best guesses layer by layer, one token's vector, ablation, patching. All of it reports and can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from vantage.errors import Refused
from vantage.model import Model
from vantage.serve.bounds import ModelName, StrictModel, Whole
from vantage.serve.studio.answers import StudioAnswer
from vantage.serve.studio.lens.changes import (
    AblatedPart,
    PatchedActivation,
    Way,
    ablate_heads,
    ablate_part,
    patch_texts,
)
from vantage.serve.studio.lens.guesses import follow_vector, guess_grid
from vantage.serve.studio.progress_events import Report, progress_events
from vantage.serve.studio.state import sse, studio_of, work
from vantage.serve.studio.texts import encode_fitting

router = APIRouter(prefix="/studio/api/lens")
TOKENS = 128  # of a text: a grid of more cannot be read
MAX_NEW_TOKENS = 64  # tokens that are written before and after

Words = Annotated[str, Field(min_length=1, max_length=20_000)]
OneToken = Annotated[str, Field(min_length=1, max_length=200)]
Index = Annotated[Whole, Field(ge=0, le=2**20)]


class LensRequest(StrictModel):
    model: ModelName
    text: Words
    target: OneToken | None = None


class VectorRequest(StrictModel):
    model: ModelName
    text: Words
    position: Index
    target: OneToken | None = None


class AblateRequest(StrictModel):
    model: ModelName
    text: Words
    part: AblatedPart
    layer: Index
    head: Index = 0
    how: Way = "zero"
    tokens: Annotated[Whole, Field(ge=1, le=MAX_NEW_TOKENS)] = 16


class AblateHeadsRequest(StrictModel):
    model: ModelName
    text: Words
    how: Way = "zero"
    target: OneToken | None = None
    against: OneToken | None = None


class PatchRequest(StrictModel):
    model: ModelName
    clean: Words
    corrupted: Words
    activation: PatchedActivation = "residual_before"
    target: OneToken | None = None
    against: OneToken | None = None


@router.post("")
async def lens(request: Request, body: LensRequest) -> Response:
    def run(model: Model, report: Report) -> StudioAnswer:
        return guess_grid(model, _ids(model, body.text), body.target, report)

    return await _events(request, body.model, run)


@router.post("/vector")
async def vector(request: Request, body: VectorRequest) -> Response:
    def run(model: Model, report: Report) -> StudioAnswer:
        return follow_vector(model, _ids(model, body.text), body.position, body.target, report)

    return await _events(request, body.model, run)


@router.post("/ablate")
async def without_part(request: Request, body: AblateRequest) -> Response:
    def run(model: Model, report: Report) -> StudioAnswer:
        ids = _ids(model, body.text, body.tokens)
        return ablate_part(model, ids, body.part, body.layer, body.head, body.how, body.tokens, report)

    return await _events(request, body.model, run)


@router.post("/ablate/heads")
async def without_each_head(request: Request, body: AblateHeadsRequest) -> Response:
    def run(model: Model, report: Report) -> StudioAnswer:
        return ablate_heads(model, _ids(model, body.text), body.how, body.target, body.against, report)

    return await _events(request, body.model, run)


@router.post("/patch")
async def patched(request: Request, body: PatchRequest) -> Response:
    def run(model: Model, report: Report) -> StudioAnswer:
        clean, corrupted = _ids(model, body.clean), _ids(model, body.corrupted)
        return patch_texts(model, clean, corrupted, body.activation, body.target, body.against, report)

    return await _events(request, body.model, run)


def _ids(model: Model, text: str, more: int = 0) -> list[int]:
    if model.kind != "decoder":
        raise Refused("the lens needs a decoder, and this model is not one: choose another")
    return encode_fitting(model, text, TOKENS, more)


async def _events(request: Request, name: str, run: Callable[[Model, Report], StudioAnswer]) -> Response:
    """``progress``, then ``result``. A reader that leaves ends the work at its next report."""
    model = await studio_of(request).model(name)

    def events():
        return progress_events(lambda report: ("result", run(model, report)), "studio-lens")

    return await sse(request, work(request, events, model=name))
