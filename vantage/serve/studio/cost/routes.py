"""Cache and cost: the calculator, and generation with and without a cache, measured."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from fastapi import APIRouter, Request, Response
from pydantic import Field

from vantage.serve.bounds import ModelName, StrictModel, Whole
from vantage.serve.errors import bad
from vantage.serve.studio.cost.answers import CostAnswer
from vantage.serve.studio.cost.calculator import VOCAB, Sizes, calculate, sizes_of
from vantage.serve.studio.cost.measurement import MAX_TOKENS, measure
from vantage.serve.studio.state import call, sse, studio_of, work

router = APIRouter(prefix="/studio/api")

CONTEXTS = tuple(2**i for i in range(10, 18))
Dtype = Literal["float64", "float32", "bfloat16", "float16"]


class SizesRequest(StrictModel):
    layers: Annotated[Whole, Field(ge=1, le=256)]
    width: Annotated[Whole, Field(ge=1, le=65_536)]
    heads: Annotated[Whole, Field(ge=1, le=512)]
    kv_heads: Annotated[Whole, Field(ge=1, le=512)] | None = None  # none: as many as heads
    head_width: Annotated[Whole, Field(ge=1, le=1024)] | None = None  # none: width / heads
    window: Annotated[Whole, Field(ge=1, le=2**24)] | None = None
    latent: Annotated[Whole, Field(ge=1, le=65_536)] | None = None  # the width of MLA's latent
    vocab: Annotated[Whole, Field(ge=1, le=2**20)] = VOCAB
    dtype: Dtype | None = None

    def sizes(self) -> Sizes:
        if self.head_width is None and self.width % self.heads:
            raise bad(f"width {self.width} does not divide into {self.heads} heads: change one, or say head_width")
        if self.heads % (self.kv_heads or self.heads):
            raise bad(f"{self.heads} heads over {self.kv_heads} key/value heads: the second must divide the first")
        head = self.head_width or self.width // self.heads
        kv = self.kv_heads or self.heads
        return Sizes(self.layers, self.width, self.heads, kv, head, self.window, self.latent, self.vocab)


class CostRequest(StrictModel):
    """A model that is there, or a shape."""

    model: ModelName | None = None
    shape: SizesRequest | None = None
    contexts: Annotated[list[Annotated[Whole, Field(ge=1, le=2**24)]], Field(min_length=1, max_length=32)] = Field(
        default_factory=lambda: list(CONTEXTS)
    )
    batch: Annotated[Whole, Field(ge=1, le=4096)] = 1
    dtype: Dtype | None = None


class MeasureRequest(StrictModel):
    model: ModelName
    tokens: Annotated[Whole, Field(ge=1, le=MAX_TOKENS)] = 64


@router.post("/cost")
async def cost(request: Request, body: CostRequest) -> CostAnswer:
    if (body.model is None) == (body.shape is None):
        raise bad("say a model or a shape, one of the two", "model")
    shape = body.shape
    named = body.dtype or (None if shape is None else shape.dtype) or "bfloat16"
    if shape is not None:
        sizes, own = shape.sizes(), None
    else:
        assert body.model is not None
        own = (await studio_of(request).loaded(body.model)).model.spec
        sizes = sizes_of(own)
    contexts, dtype = sorted(set(body.contexts)), getattr(torch, named)
    return await call(request, lambda: calculate(sizes, own, contexts, body.batch, dtype), thread="figures")


@router.post("/cost/measure")
async def measured(request: Request, body: MeasureRequest) -> Response:
    model = await studio_of(request).model(body.model, "measure")
    points = work(request, lambda: measure(model, body.tokens), thread=f"measure {body.model}")
    return await sse(request, points)
