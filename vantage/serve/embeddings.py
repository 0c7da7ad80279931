"""``POST /v1/embeddings``."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vantage.serve import bounds
from vantage.serve.errors import bad, late
from vantage.serve.generation_call import unless_client_leaves
from vantage.serve.model_pool import LoadedModel
from vantage.serve.openapi import answers
from vantage.serve.requests import EmbeddingRequest
from vantage.serve.responses import Embeddings
from vantage.serve.state import ServerState, entry_of, state_of
from vantage.serve.submissions import prompts_of

router = APIRouter()


@router.post("/v1/embeddings", responses=answers(Embeddings), tags=["openai"])
async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
    """A vector of length 1 for each text."""
    state, entry = state_of(request), entry_of(request)
    entry.model, entry.user = body.model, body.user
    if state.log.prompts:
        entry.prompt = body.input
    try:
        async with asyncio.timeout(state.settings.limits.request_s):
            rows, vectors = await unless_client_leaves(request, _embedded(state, body))
    except TimeoutError:
        raise late() from None
    tokens = entry.prompt_tokens = sum(map(len, rows))
    data = [
        {"object": "embedding", "index": i, "embedding": _written(vector, body.encoding_format)}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": usage})


async def _embedded(state: ServerState, body: EmbeddingRequest) -> tuple[list[list[int]], list[list[float]]]:
    async with state.model_pool.lease(body.model) as loaded:
        embedder = loaded.embedder
        width = loaded.model.spec.width
        if body.dimensions is not None and body.dimensions != width:
            raise bad(f"this model's embeddings have {width} dimensions, and cannot have others", "dimensions")
        with embedder.seat():
            rows = await state.model_pool.prepare(lambda: [_row(loaded, one) for one in prompts_of(body.input)])
            if sum(map(len, rows)) > bounds.INPUT_TOKENS:
                raise bad(f"at most {bounds.INPUT_TOKENS} tokens in one call: send fewer inputs", "input")
            return rows, await embedder.embed(rows)


def _row(loaded: LoadedModel, one: str | list[int]) -> list[int]:
    row = loaded.safe_tokenizer.encode(one) if isinstance(one, str) else one
    vocab, context = loaded.model.spec.vocab, loaded.context
    if any(token >= vocab for token in row):
        raise bad(f"a token is not in the vocabulary, which has 0 to {vocab - 1}", "input")
    if not row:
        raise bad("an empty input: give some text", "input")
    if context is not None and len(row) > context:
        raise bad(
            f"this model's context is {context} tokens, and an input has {len(row)}: shorten it",
            "input",
            "context_length_exceeded",
        )
    return row


def _written(vector: list[float], form: str | None) -> Any:
    if form != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
