"""Attention: a text read once, then any head's map, all heads small, the atlas, and scores in parts.

A text may be read with another encoding than the model's own; whatever is asked of that reading is of that encoding.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from torch import Tensor

from vantage.inspect.decompose import NAMES, split_scores
from vantage.inspect.decomposition import Decomposition
from vantage.position import Rope, XPos
from vantage.serve.bounds import ModelName, StrictModel, Text
from vantage.serve.errors import bad
from vantage.serve.studio.attention.read_texts import SIZE, Picture, Pictures, pictured
from vantage.serve.studio.state import call, studio_of
from vantage.serve.studio.swapped_models import Position

router = APIRouter(prefix="/studio/api/attention")
GROUPS = 8  # of frequency bands
ROTATIONS = (NAMES[Rope], NAMES[XPos])
SHARES = ("previous", "first", "same", "induction", "local", "positional")
Id = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
Kind = Literal["self", "cross", "encoder"]
At = Annotated[int, Query(ge=0, lt=2**31)]
T = TypeVar("T")


class Look(StrictModel):
    model: ModelName
    text: Text
    source: Text | None = None
    position: Position | None = None  # another encoding than its own


@router.post("")
async def look(request: Request, body: Look) -> Response:
    """Read a text. What comes back names the sites whose maps can be had."""
    studio = studio_of(request)
    loaded = await studio.loaded(body.model)
    model = await studio.model(body.model)
    if (model.encoder is None) != (body.source is None):
        wanted = "has no encoder: leave the source out" if model.encoder is None else "reads a source: write one"
        raise bad(f"{body.model} {wanted}", "source")

    def seen() -> tuple[Picture, float]:
        ids = loaded.safe_tokenizer.encode(body.text)
        source = None if body.source is None else loaded.safe_tokenizer.encode(body.source)
        began = time.perf_counter()
        return pictured(body.model, model, ids, source, body.position), 1e3 * (time.perf_counter() - began)

    picture, ms = await call(request, seen, model=body.model)
    studio.part(Pictures).put(picture)
    said = {
        "id": picture.id,
        "tokens": picture.words("self"),
        "source_tokens": None if picture.source is None else picture.words("cross"),
        "length": len(picture.ids),
        "sites": picture.sites(),
        "position": picture.position,
        "ms": round(ms, 3),
    }
    return JSONResponse(said)


async def _of(request: Request, id: str, ask: Callable[[Picture], T]) -> T:
    picture = studio_of(request).part(Pictures).get(id)
    return await call(request, lambda: ask(picture), model=picture.name)


@router.get("/{id}/heads")
async def heads(request: Request, id: Id, layer: At, kind: Kind = "self") -> Response:
    """All heads of a layer as small maps, one after another."""
    made = await _of(request, id, lambda picture: picture.heads(kind, layer))
    said = {"X-Heads": str(len(made) // SIZE**2), "X-Size": str(SIZE)}
    return Response(made, media_type="application/octet-stream", headers=said)


@router.get("/{id}/head")
async def head(request: Request, id: Id, layer: At, head: At, kind: Kind = "self") -> Response:
    """One head's whole map."""

    def ask(picture: Picture) -> tuple[tuple[int, ...], bytes]:
        made = picture.head(kind, layer, head)
        return made.shape, made.tobytes()

    (queries, keys), body = await _of(request, id, ask)
    said = {"X-Queries": str(queries), "X-Keys": str(keys)}
    return Response(body, media_type="application/octet-stream", headers=said)


@router.get("/{id}/atlas")
async def heads_by_kind(request: Request, id: Id) -> Response:
    """Every head, measured on the first tokens of the text and sorted by what it does."""
    made = await _of(request, id, lambda picture: picture.atlas())
    heads = [
        {
            "kind": one.site,
            "layer": one.layer,
            "head": one.head,
            "label": one.kind,
            "entropy": _number(one.measures["entropy"]),
            "distance": _number(one.measures["distance"]),
            "shares": {name: _number(one.measures[name]) for name in SHARES},
        }
        for one in made.heads
    ]
    return JSONResponse({"heads": heads, "counts": made.counts, "tokens": made.tokens})


@router.get("/{id}/scores")
async def scores(request: Request, id: Id, layer: At, head: At, query: At, kind: Kind = "self") -> Response:
    """One query's scores before the softmax, in parts that add up to them."""

    def ask(picture: Picture) -> dict[str, Any]:
        met = picture.met(kind, layer, head)
        count = met.call.q.shape[2]
        if query >= count:
            raise bad(f"there is no query {query}: there are {count}, 0 to {count - 1}", "query")
        told = split_scores(met, head, query)
        seen = told.seen[0, 0]
        return {
            "keys": picture.words(kind),
            "score": _values(told.score[0, 0], seen),
            "parts": [{"name": name, "of": of, "values": _values(value, seen)} for name, of, value in _parts(told)],
            "note": None if told.frequency is not None else picture.without_bands(met),
        }

    return JSONResponse(await _of(request, id, ask))


def _parts(told: Decomposition) -> Iterator[tuple[str, str, Tensor]]:
    """The terms of one query's scores. A rotation is told by wavelength, neighbouring bands together."""
    for term in told.terms:
        if term.name in ROTATIONS and told.frequency is not None and told.band_position is not None:
            count = min(GROUPS, len(told.frequency))
            edges = [len(told.frequency) * i // count for i in range(count + 1)]
            wave = (2 * math.pi / told.frequency).tolist()
            for low, high in itertools.pairwise(edges):
                name = f"{term.name}, wavelength {wave[low]:,.0f} to {wave[high - 1]:,.0f}"
                yield name, term.of, told.band_position[low:high].sum(0)[0, 0]
        else:
            yield term.name, term.of, term.value[0, 0]


def _values(line: Tensor, seen: Tensor) -> list[float | None]:
    """What is not seen is ``None``."""
    return [value if there else None for value, there in zip(line.tolist(), seen.tolist(), strict=True)]


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return value if math.isfinite(value) else None
