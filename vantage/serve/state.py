"""What every route can reach: the app's own state, and what is known of the request at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from fastapi import Request

from vantage.serve.hub import Hub
from vantage.serve.logs import Entry, Log
from vantage.serve.metrics import Metrics
from vantage.serve.settings import Settings
from vantage.serve.shelf import Shelf

ENTRY, TENANT = "vantage.entry", "vantage.tenant"  # in a request's scope


@final
@dataclass
class State:
    settings: Settings
    hub: Hub
    log: Log
    metrics: Metrics
    shelf: Shelf  # what /v1/attention can look into
    abort: Callable[[Any], None] = lambda client: None  # whoever runs the app may know how to cut a connection


def state_of(request: Request) -> State:
    return request.app.state.vantage


def entry_of(request: Request) -> Entry:
    return request.scope[ENTRY]


def tenant_of(request: Request) -> str | None:
    """Whose prefixes it may share: those of its own key."""
    return request.scope[TENANT]
