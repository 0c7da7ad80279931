"""``POST /v1/attention``: where the tokens of a finished request looked.

The tokens of the last requests of each key are kept for this (``finished_requests.py``). The weights are computed again
from them, on a copy of the model that shares its weights, so the engine runs on undisturbed.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vantage.errors import VantageError
from vantage.inspect.capture import capture
from vantage.inspect.captured import Capture
from vantage.inspect.reductions import STATS
from vantage.inspect.select import labels
from vantage.inspect.sites import sites_of
from vantage.model import Model
from vantage.model.shared_copy import copy_sharing_weights
from vantage.serve.errors import ApiError, bad, failed, late
from vantage.serve.finished_requests import FinishedChoice
from vantage.serve.generation_call import unless_client_leaves
from vantage.serve.openapi import answers
from vantage.serve.requests import AttentionRequest
from vantage.serve.responses import AttentionOf
from vantage.serve.state import ServerState, entry_of, state_of, tenant_of

router = APIRouter()
NUMBERS = 2**20  # of one answer


@router.post("/v1/attention", responses=answers(AttentionOf), tags=["inspect"])
async def attention(request: Request, body: AttentionRequest) -> Response:
    """The attention weights of a request that has finished, by its id. Another key's request is not found."""
    state = state_of(request)
    finished = state.finished_requests.get(tenant_of(request), body.id)
    entry_of(request).model = finished.model
    choice = body.choice or 0
    if choice >= len(finished.rows):
        raise bad(f"there is no choice {choice}: the request had {len(finished.rows)}", "choice")
    row = finished.rows[choice]
    if not len(row):
        raise bad(f"choice {choice} has too many tokens to look at", "choice", "too_many_tokens")
    try:
        async with asyncio.timeout(state.settings.limits.request_s):
            return JSONResponse(await unless_client_leaves(request, _looked(state, body, finished.model, row)))
    except TimeoutError:
        raise late() from None


async def _looked(state: ServerState, body: AttentionRequest, name: str, row: FinishedChoice) -> dict[str, Any]:
    gone = threading.Event()
    async with state.model_pool.lease(name) as loaded:
        try:
            return await state.finished_requests.run(lambda: _look(loaded.model, body, name, row, gone))
        except VantageError:
            raise
        except Exception as e:
            state.log.fault(name, "attention", e)
            raise failed(e, own=False) from e
        finally:
            gone.set()


def _look(
    model: Model, body: AttentionRequest, name: str, row: FinishedChoice, gone: threading.Event
) -> dict[str, Any]:
    keep = body.keep or "top8"
    if model.parallel is not None:
        raise bad(f"{name} lies over several processes, none of which has all heads: serve it in one to look inside")
    _check_size(model, body, keep, row)

    def stop_if_left(done: int, total: int) -> None:
        if gone.is_set():
            raise ApiError(499, "cancelled", "the client went away")

    try:
        captured = capture(
            copy_sharing_weights(model),
            row.tokens,
            source=None if row.source is None else list(row.source),
            kinds=body.kinds,
            layers=body.layers,
            heads=body.heads,
            queries=body.queries,
            keep=keep,
            beyond=True,
            progress=stop_if_left,
        )
    except ApiError:
        raise
    except VantageError as e:
        raise bad(str(e)) from e
    return {
        "id": body.id,
        "object": "attention",
        "model": name,
        "choice": body.choice or 0,
        "keep": keep,
        "prompt_tokens": len(row.prompt),
        "tokens": labels(model, row.tokens),
        "source": None if row.source is None else labels(model, row.source),
        "attention": [_site(captured, kind, layer, keep) for kind, layer in captured.sites],
    }


def _site(captured: Capture, kind: str, layer: int, keep: str) -> dict[str, Any]:
    site: dict[str, Any] = {"kind": kind, "layer": layer, "heads": list(captured.heads(layer, kind))}
    site["queries"] = captured.queries(layer, kind)[0].tolist()
    if keep == "stats":
        return site | {"stats": {name: t.tolist() for name, t in captured.stats(layer, kind=kind).items()}}
    dense = captured.weights(layer, kind=kind)
    if keep == "weights":
        return site | {"weights": dense.tolist()}
    best = dense.topk(min(int(keep.removeprefix("top")), dense.shape[-1]), -1)
    return site | {"weights": best.values.tolist(), "keys": best.indices.tolist()}


def _check_size(model: Model, body: AttentionRequest, keep: str, row: FinishedChoice) -> None:
    """Before a pass is run: the numbers that the answer would have."""
    numbers = 0
    for site in sites_of(model):
        if (body.kinds and site.kind not in body.kinds) or (body.layers and site.layer not in body.layers):
            continue
        inner = len(row.source or ())
        queries = inner if site.kind == "encoder" else len(row.tokens)
        keys = len(row.tokens) if site.kind == "self" else inner
        rows = (len(body.heads) if body.heads else site.heads) * (len(body.queries) if body.queries else queries)
        each = {"weights": keys, "stats": len(STATS)}
        numbers += rows * (each[keep] if keep in each else 2 * min(keys, int(keep.removeprefix("top"))))
    if numbers > NUMBERS:
        raise bad(
            f"the answer would have {numbers:,} numbers, and at most {NUMBERS:,} are given: choose fewer layers, heads "
            'or queries, or keep less ("top8", "stats")',
            "layers",
            "answer_too_large",
        )
