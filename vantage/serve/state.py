"""What every route can reach: the app's own state, and what is known of the request at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from fastapi import Request

from vantage.serve.finished_requests import FinishedRequests
from vantage.serve.logs import LogEntry, ServerLog
from vantage.serve.metrics import Metrics
from vantage.serve.model_pool import Backend, ModelPool
from vantage.serve.model_responses.stored import StoredResponses
from vantage.serve.settings import ServerSettings

ENTRY, TENANT = "vantage.entry", "vantage.tenant"  # in a request's scope


@final
@dataclass
class ServerState:
    settings: ServerSettings
    model_pool: ModelPool
    log: ServerLog
    metrics: Metrics
    finished_requests: FinishedRequests  # what /v1/attention can look into
    stored_responses: StoredResponses  # what /v1/responses can go on from
    abort: Callable[[Any], None] = lambda client: None  # whoever runs the app may know how to cut a connection

    @property
    def backend(self) -> Backend:
        """What a runner drains and closes."""
        return self.model_pool


def state_of(request: Request) -> ServerState:
    return request.app.state.vantage


def entry_of(request: Request) -> LogEntry:
    return request.scope[ENTRY]


def tenant_of(request: Request) -> str | None:
    """Whose prefixes it may share: those of its own key."""
    return request.scope[TENANT]
