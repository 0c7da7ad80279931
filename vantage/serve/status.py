"""``GET /health``, ``/metrics`` and ``/v1/models``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from vantage.serve.metrics import TYPE, Metrics, MetricsPage
from vantage.serve.model_pool import ModelPool
from vantage.serve.openapi import answers, as_text
from vantage.serve.responses import Card, Cards, Health
from vantage.serve.state import state_of
from vantage.serve.worker import Snapshot

router = APIRouter()


@router.get("/health", responses={**answers(Health, errors=(400, 403, 431)), 503: {"model": Health}}, tags=["status"])
async def health(request: Request) -> Response:
    """Whether new requests are taken. The only route that needs no key, so it names no model."""
    if state_of(request).model_pool.draining:
        return JSONResponse({"status": "draining"}, status_code=503)
    return JSONResponse({"status": "ok"})


@router.get("/v1/models", responses=answers(Cards), tags=["openai"])
async def models(request: Request) -> Response:
    """The models that can be asked for."""
    return JSONResponse({"object": "list", "data": state_of(request).model_pool.listed()})


@router.get("/v1/models/{model:path}", responses=answers(Card), tags=["openai"])
async def model(request: Request, model: str) -> Response:
    """One of them."""
    return JSONResponse(state_of(request).model_pool.card(model))


@router.get("/metrics", responses=as_text("Prometheus' text format"), tags=["status"])
async def metrics(request: Request) -> Response:
    """What was done and what is held, for Prometheus."""
    state = state_of(request)
    return PlainTextResponse(page(state.metrics, state.model_pool), media_type=TYPE)


GAUGES = (
    ("queue_waiting", "Samples that have not begun", lambda s: s.waiting),
    ("batch_rows", "Samples that run", lambda s: s.running),
    ("cache_bytes", "Keys and values of the blocks in use", lambda s: s.stats.bytes_held),
    ("prefixes", "Prefixes that are kept", lambda s: s.stats.prefixes),
)
COUNTERS = (
    ("preemptions_total", "Samples put back to make room", lambda s: s.stats.preemptions),
    ("evictions_total", "Prefixes given up to make room", lambda s: s.stats.evictions),
    ("steps_total", "Steps of the engine", lambda s: s.stats.steps),
)
TOKENS = ("prefilled", "reused", "generated", "recomputed")


def page(metrics: Metrics, model_pool: ModelPool) -> str:
    lines = MetricsPage()
    lines.counter("vantage_requests_total", "Requests by route and status", metrics.requests)
    lines.counter("vantage_refused_total", "Requests refused, by the code of the error", metrics.refused)
    lines.histogram("vantage_request_seconds", "From arrival to the end of the answer", metrics.seconds)
    lines.histogram("vantage_first_token_seconds", "From arrival to the first token", metrics.first_token)
    lines.histogram("vantage_token_seconds", "Between two tokens of an answer", metrics.per_token)
    lines.counter("vantage_model_loads_total", "Models loaded", metrics.loads)
    lines.counter("vantage_model_unloads_total", "Models unloaded", metrics.unloads)
    loaded = model_pool.loaded()
    lines.put("vantage_model_bytes", "gauge", "Weights and cache", [({"model": one.name}, one.bytes) for one in loaded])
    lines.put("vantage_busy", "gauge", "Requests under way", [({}, model_pool.busy)])
    workers = [(one.name, one.worker) for one in loaded if one.generates]
    shots = [(name, worker.snapshot) for name, worker in workers]
    for name, about, read in GAUGES:
        lines.put(f"vantage_{name}", "gauge", about, [({"model": model}, read(shot)) for model, shot in shots])
    for name, about, read in COUNTERS:
        lines.put(f"vantage_{name}", "counter", about, [({"model": model}, read(shot)) for model, shot in shots])
    lines.put("vantage_cache_blocks", "gauge", "Blocks of the cache", [row for shot in shots for row in _blocks(*shot)])
    lines.put(
        "vantage_tokens_total", "counter", "Tokens by what was done", [t for shot in shots for t in _tokens(*shot)]
    )
    faults = [({"model": name}, worker.faults) for name, worker in workers]
    lines.put("vantage_engine_faults_total", "counter", "Engines restarted after a fault", faults)
    return str(lines)


def _blocks(model: str, shot: Snapshot) -> list[tuple[dict[str, str], float]]:
    held = (("used", shot.stats.blocks_used), ("free", shot.stats.blocks_free))
    return [({"model": model, "state": state}, n) for state, n in held]


def _tokens(model: str, shot: Snapshot) -> list[tuple[dict[str, Any], float]]:
    return [({"model": model, "kind": kind}, getattr(shot.stats, kind)) for kind in TOKENS]
