"""Attention: a text read once, then any head's map, all heads small, the atlas, and scores in parts.

A text may be read with another encoding than the model's own; whatever is asked of that reading is of that encoding.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from torch import Tensor

from vantage.inspect import Atlas
from vantage.inspect.decompose import split_scores
from vantage.inspect.decomposition import Decomposition
from vantage.model import Model
from vantage.position import Rope, XPos
from vantage.serve.bounds import ModelName, StrictModel, Text
from vantage.serve.errors import bad
from vantage.serve.studio.attention.answers import (
    AtlasAnswer,
    HeadEntry,
    ReadTextAnswer,
    ScorePart,
    ScoresAnswer,
    SiteKind,
    site_kind,
)
from vantage.serve.studio.attention.read_texts import SIZE, ReadText, ReadTexts, asked_for, read_text
from vantage.serve.studio.chat.conversations import Conversations, digest
from vantage.serve.studio.chat.transcripts import ConversationId, Count
from vantage.serve.studio.progress_events import Report, progress_events
from vantage.serve.studio.state import Event, Studio, call, sse, studio_of, work
from vantage.serve.studio.swapped_models import EncodingRequest

router = APIRouter(prefix="/studio/api/attention")
GROUPS = 8  # of frequency bands
ROTATIONS = (Rope.effect.name, XPos.effect.name)  # whose terms come by band
SHARES = ("previous", "first", "same", "induction", "local", "positional")
Id = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
At = Annotated[int, Query(ge=0, lt=2**31)]
T = TypeVar("T")


class AnswerPoint(StrictModel):
    """An answer of a conversation, with everything before it: the very tokens."""

    conversation: ConversationId
    turn: Count


class ReadTextRequest(StrictModel):
    """What to read: a text, or in its place an answer of a conversation."""

    model: ModelName
    text: Text = ""
    answer: AnswerPoint | None = None
    source: Text | None = None
    position: EncodingRequest | None = None  # another encoding than its own


@router.post("")
async def read(request: Request, body: ReadTextRequest) -> ReadTextAnswer:
    """Read a text. What comes back names the sites whose maps can be had."""
    run = await _reading(request, body)
    return await call(request, lambda: run(None), model=body.model)


@router.post("/events")
async def read_events(request: Request, body: ReadTextRequest) -> Response:
    """The same as events: ``progress``, layer by layer, then ``result``. A reader that leaves ends it."""
    run = await _reading(request, body)

    def events() -> Iterator[Event]:
        return progress_events(lambda report: ("result", run(report)), "studio-read")

    return await sse(request, work(request, events, model=body.model))


async def _reading(request: Request, body: ReadTextRequest) -> Callable[[Report | None], ReadTextAnswer]:
    """A function that reads the text, for the model's thread. A text that was read before is not read again."""
    studio = studio_of(request)
    loaded = await studio.loaded(body.model)
    model = await studio.model(body.model)
    if (model.encoder is None) != (body.source is None):
        wanted = "has no encoder: leave the source out" if model.encoder is None else "reads a source: write one"
        raise bad(f"{body.model} {wanted}", "source")

    texts = studio.part(ReadTexts)

    def run(report: Report | None) -> ReadTextAnswer:
        ids = loaded.safe_tokenizer.encode(body.text) if body.answer is None else _answer(studio, body.answer, model)
        source = None if body.source is None else loaded.safe_tokenizer.encode(body.source)
        text, ms = texts.find(asked_for(model, ids, source, body.position)), None
        if text is None:
            began = time.perf_counter()
            text = read_text(body.model, model, ids, source, body.position, report)
            ms = round(1e3 * (time.perf_counter() - began), 3)
        texts.put(text)
        return ReadTextAnswer(
            id=text.id,
            tokens=text.words("self"),
            source_tokens=None if text.source is None else text.words("cross"),
            length=len(text.ids),
            sites=text.sites(),
            position=text.position,
            ms=ms,
        )

    return run


def _answer(studio: Studio, at: AnswerPoint, model: Model) -> list[int]:
    """The tokens of a conversation up to the end of an answer."""
    transcript = studio.part(Conversations).transcript(at.conversation)
    if at.turn >= len(transcript.turns):
        raise bad(f"there is no answer {at.turn + 1} in this conversation: it has {len(transcript.turns)}", "turn")
    if transcript.fingerprint != digest(model):
        raise bad(f"this conversation was written with another model, {transcript.model}: choose that one", "model")
    past = transcript.turns[at.turn].past
    if past.starts:
        raise bad(
            "this answer was written with an image, and texts alone are read here: choose one without", "turn", "images"
        )
    return list(past.tokens)


async def _of(request: Request, id: str, ask: Callable[[ReadText], T]) -> T:
    text = studio_of(request).part(ReadTexts).get(id)
    return await call(request, lambda: ask(text), model=text.name)


@router.get("/{id}/heads")
async def heads(request: Request, id: Id, layer: At, kind: SiteKind = "self") -> Response:
    """All heads of a layer as small maps, one after another."""
    maps = await _of(request, id, lambda text: text.heads(kind, layer))
    headers = {"X-Heads": str(len(maps) // SIZE**2), "X-Size": str(SIZE)}
    return Response(maps, media_type="application/octet-stream", headers=headers)


@router.get("/{id}/head")
async def head(request: Request, id: Id, layer: At, head: At, kind: SiteKind = "self", half: bool = False) -> Response:
    """One head's whole map; or, of each four weights, the largest."""

    def ask(text: ReadText) -> tuple[tuple[int, ...], bytes]:
        weights = text.head(kind, layer, head, half=half)
        return weights.shape, weights.tobytes()

    (queries, keys), body = await _of(request, id, ask)
    headers = {"X-Queries": str(queries), "X-Keys": str(keys)}
    return Response(body, media_type="application/octet-stream", headers=headers)


@router.get("/{id}/atlas")
async def heads_by_kind(request: Request, id: Id) -> AtlasAnswer:
    """Every head, measured on the first tokens of the text and sorted by what it does."""
    return await _of(request, id, lambda text: _atlas_answer(text.atlas()))


@router.get("/{id}/atlas/events")
async def heads_by_kind_events(request: Request, id: Id) -> Response:
    """The same as events: ``progress``, then ``result``. A reader that leaves ends it."""
    text = studio_of(request).part(ReadTexts).get(id)

    def events() -> Iterator[Event]:
        return progress_events(lambda report: ("result", _atlas_answer(text.atlas(report))), "studio-atlas")

    return await sse(request, work(request, events, model=text.name))


def _atlas_answer(atlas: Atlas) -> AtlasAnswer:
    heads = [
        HeadEntry(
            kind=site_kind(one.site),
            layer=one.layer,
            head=one.head,
            label=one.kind,
            entropy=_number(one.measures["entropy"]),
            distance=_number(one.measures["distance"]),
            shares={name: _number(one.measures[name]) for name in SHARES},
        )
        for one in atlas.heads
    ]
    return AtlasAnswer(heads=heads, counts=atlas.counts, tokens=atlas.tokens)


@router.get("/{id}/scores")
async def scores(request: Request, id: Id, layer: At, head: At, query: At, kind: SiteKind = "self") -> ScoresAnswer:
    """One query's scores before the softmax, in parts that add up to them."""

    def ask(text: ReadText) -> ScoresAnswer:
        met = text.met(kind, layer, head)
        count = met.call.q.shape[2]
        if query >= count:
            raise bad(f"there is no query {query}: there are {count}, 0 to {count - 1}", "query")
        parts = split_scores(met, head, query)
        seen = parts.seen[0, 0]
        return ScoresAnswer(
            keys=text.words(kind),
            score=_values(parts.score[0, 0], seen),
            parts=[ScorePart(name=name, of=of, values=_values(value, seen)) for name, of, value in _parts(parts)],
            note=None if parts.frequency is not None else text.without_bands(met),
        )

    return await _of(request, id, ask)


def _parts(parts: Decomposition) -> Iterator[tuple[str, str, Tensor]]:
    """The terms of one query's scores. A rotation is told by wavelength, neighbouring bands together."""
    for term in parts.terms:
        if term.name in ROTATIONS and parts.frequency is not None and parts.band_position is not None:
            count = min(GROUPS, len(parts.frequency))
            edges = [len(parts.frequency) * i // count for i in range(count + 1)]
            wave = (2 * math.pi / parts.frequency).tolist()
            for low, high in itertools.pairwise(edges):
                name = f"{term.name}, wavelength {wave[low]:,.0f} to {wave[high - 1]:,.0f}"
                yield name, term.of, parts.band_position[low:high].sum(0)[0, 0]
        else:
            yield term.name, term.of, term.value[0, 0]


def _values(line: Tensor, seen: Tensor) -> list[float | None]:
    """What is not seen is ``None``."""
    return [value if visible else None for value, visible in zip(line.tolist(), seen.tolist(), strict=True)]


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return value if math.isfinite(value) else None
