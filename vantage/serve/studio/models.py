"""The models there are, and what a text is to them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vantage.attention import LengthTemperature, QKNorm
from vantage.inspect.select import labels
from vantage.model import Model
from vantage.position.late_temperature import LateTemperature
from vantage.position.xl import ContentBias
from vantage.serve.bounds import ModelName, StrictModel, Text
from vantage.serve.model_pool import LoadedModel
from vantage.serve.studio.state import Studio, call, studio_of

router = APIRouter(prefix="/studio/api")
NOT_POSITION = (QKNorm, LengthTemperature, LateTemperature, ContentBias)


class Named(StrictModel):
    name: ModelName


class Words(StrictModel):
    model: ModelName
    text: Text


@router.get("/models")
async def models(request: Request) -> Response:
    """What can be asked for. What is not loaded yet says nothing about itself."""
    studio = studio_of(request)
    there = {loaded.name: loaded for loaded in studio.model_pool.loaded()}
    return JSONResponse(
        {"default": studio.default, "models": [entry(studio, name, there.get(name)) for name in studio.names]}
    )


@router.post("/models/load")
async def load(request: Request, body: Named) -> Response:
    studio = studio_of(request)
    loaded = await studio.loaded(body.name)
    return JSONResponse(entry(studio, body.name, loaded))


@router.post("/tokens")
async def tokens(request: Request, body: Words) -> Response:
    """The tokens of a text, as the model would read it: what it spells stays text."""
    loaded = await studio_of(request).loaded(body.model)

    def read() -> dict[str, Any]:
        ids = loaded.safe_tokenizer.encode(body.text)
        return {"ids": ids, "tokens": labels(loaded.model, ids)}

    return JSONResponse(await call(request, read, thread="tokens"))


def entry(studio: Studio, name: str, loaded: LoadedModel | None) -> dict[str, Any]:
    about = dict.fromkeys(
        ("kind", "family", "layers", "heads", "kv_heads", "width", "vocab", "context", "position", "chat")
    )
    error = None if loaded is not None else studio.troubles.get(name)
    said = {"name": name, "loaded": loaded is not None, "error": error, **about}
    return said if loaded is None else {**said, **described(loaded)}


def described(loaded: LoadedModel) -> dict[str, Any]:
    model, spec = loaded.model, loaded.model.spec
    shape = spec.layers[0].attention.shape(spec.width)
    return {
        "kind": model.kind,
        "family": (model.config or {}).get("model_type"),
        "layers": len(spec.layers),
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "width": spec.width,
        "vocab": spec.vocab,
        "context": model.context_length,
        "position": position_of(model),
        "chat": model.kind == "decoder" and loaded.safe_tokenizer.tokenizer.template is not None,
    }


def position_of(model: Model) -> str:
    """Every encoding that acts somewhere, by name."""
    spec = model.spec
    acting: list[Any] = [*spec.embedding.inputs]
    for layer in spec.layers:
        acting += [part for part in (*layer.qk, layer.bias) if part is not None and not isinstance(part, NOT_POSITION)]
    return ", ".join(dict.fromkeys(type(part).__name__.lower() for part in acting)) or "none"
