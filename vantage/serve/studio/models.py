"""The models there are, and what a text is to them."""

from __future__ import annotations

from typing import Any, final

from fastapi import APIRouter, Request

from vantage.errors import VantageError
from vantage.families import model_kind
from vantage.inspect.select import labels
from vantage.inspect.swap import is_position
from vantage.model import Model
from vantage.serve.bounds import ModelName, StrictModel, Text
from vantage.serve.model_pool import LoadedModel
from vantage.serve.studio.answers import StudioAnswer
from vantage.serve.studio.state import Studio, call, studio_of
from vantage.spec.abilities import effect_of
from vantage.spec.model import ModelKind

router = APIRouter(prefix="/studio/api")


class LoadRequest(StrictModel):
    name: ModelName


class TokensRequest(StrictModel):
    model: ModelName
    text: Text


class ModelEntry(StudioAnswer):
    """A model. What is not loaded yet says at most its kind; ``error``: why it could not be loaded."""

    name: str
    loaded: bool
    error: str | None
    kind: ModelKind | None = None
    family: str | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    width: int | None = None
    vocab: int | None = None
    context: int | None = None
    position: str | None = None
    chat: bool | None = None
    images: bool | None = None


class ModelList(StudioAnswer):
    default: str
    models: list[ModelEntry]


class TokensAnswer(StudioAnswer):
    """A text as a model reads it."""

    ids: list[int]
    tokens: list[str]


@router.get("/models")
async def models(request: Request) -> ModelList:
    """What can be asked for."""
    studio = studio_of(request)
    kinds = await call(request, studio.part(ModelKinds).all, thread="kinds")
    loaded = {one.name: one for one in studio.model_pool.loaded()}
    entries = [model_entry(studio, name, loaded.get(name), kinds[name]) for name in studio.names]
    return ModelList(default=studio.default, models=entries)


@router.post("/models/load")
async def load(request: Request, body: LoadRequest) -> ModelEntry:
    studio = studio_of(request)
    loaded = await studio.loaded(body.name)
    return model_entry(studio, body.name, loaded)


@router.post("/tokens")
async def tokens(request: Request, body: TokensRequest) -> TokensAnswer:
    """The tokens of a text, as the model would read it: what it spells stays text."""
    loaded = await studio_of(request).loaded(body.model)

    def read() -> TokensAnswer:
        ids = loaded.safe_tokenizer.encode(body.text)
        return TokensAnswer(ids=ids, tokens=labels(loaded.model, ids))

    return await call(request, read, thread="tokens")


@final
class ModelKinds:
    """What kind each model is, by its config: a page need not load an encoder to know that it cannot chat."""

    def __init__(self, studio: Studio):
        self._studio = studio
        self._kinds: dict[str, ModelKind | None] = {}

    def all(self) -> dict[str, ModelKind | None]:
        for name, source in self._studio.sources.items():
            if name not in self._kinds and name not in self._studio.troubles:
                self._kinds[name] = _kind(source)
        return {name: self._kinds.get(name) for name in self._studio.names}


def _kind(source: str) -> ModelKind | None:
    """``None``: it cannot be told, and loading will say why."""
    try:
        return model_kind(source)
    except (VantageError, OSError, ValueError, KeyError, TypeError):
        return None


def model_entry(studio: Studio, name: str, loaded: LoadedModel | None, kind: ModelKind | None = None) -> ModelEntry:
    if loaded is None:
        return ModelEntry(name=name, loaded=False, error=studio.troubles.get(name), kind=kind)
    model, spec = loaded.model, loaded.model.spec
    shape = spec.layers[0].attention.shape(spec.width)
    return ModelEntry(
        name=name,
        loaded=True,
        error=None,
        kind=model.kind,
        family=(model.config or {}).get("model_type"),
        layers=len(spec.layers),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        width=spec.width,
        vocab=spec.vocab,
        context=model.context_length,
        position=position_of(model),
        chat=model.kind == "decoder" and loaded.safe_tokenizer.tokenizer.template is not None,
        images=model.image_processor is not None,
    )


def position_of(model: Model) -> str:
    """Every encoding that acts somewhere, by name."""
    spec = model.spec
    acting: list[Any] = [*spec.embedding.inputs]
    for layer in spec.layers:
        parts = (part for part in (*layer.qk, layer.bias) if part is not None and is_position(part))
        acting += [part for part in parts if effect_of(part).positional]
    return ", ".join(dict.fromkeys(type(part).__name__.lower() for part in acting)) or "none"
