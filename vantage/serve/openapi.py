"""The OpenAPI description: what FastAPI makes of the models, and the errors as they really are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from vantage.serve.responses import ErrorBody

ERRORS = {
    400: "The request cannot be right",
    401: "No key, or a wrong one",
    403: "The Host or Origin is not allowed",
    404: "There is no such model, or no such request",
    405: "There is no such method here",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "Too many requests are waiting; Retry-After says when to retry",
    431: "The headers are too large",
    499: "The client went away",
    500: "A step failed, or a model could not be loaded",
    503: "The server shuts down, or has no room for the model",
    504: "The answer took too long",
}
DESCRIPTION = "Vantage's server. It speaks OpenAI's API; unknown fields are refused."


def answers(model: type[BaseModel], *, stream: bool = False, errors: Iterable[int] = ERRORS) -> dict[int | str, Any]:
    """The responses of a route."""
    responses: dict[int | str, Any] = {200: {"model": model}}
    if stream:
        responses[200]["content"] = {"text/event-stream": {"example": 'data: {"object": "..."}\n\ndata: [DONE]\n\n'}}
    return {**responses, **{status: {"model": ErrorBody, "description": ERRORS[status]} for status in errors}}


def as_text(about: str) -> dict[int | str, Any]:
    responses: dict[int | str, Any] = {
        200: {"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}}
    }
    return {**responses, **{status: {"model": ErrorBody, "description": ERRORS[status]} for status in ERRORS}}


def describe(app: FastAPI, version: str, models: Iterable[str], *, keyed: bool) -> dict[str, Any]:
    """FastAPI's description less its own 422, which never comes, and with the key and the models there are."""
    description = get_openapi(title="Vantage", version=version, description=DESCRIPTION, routes=app.routes)
    for path, methods in description["paths"].items():
        for route in methods.values():
            route["responses"].pop("422", None)
            if keyed and path != "/health":
                route["security"] = [{"bearer": []}]
    schemas = description["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for schema in schemas.values():
        if schema.get("title", "").endswith("Request") and "model" in schema["properties"]:
            schema["properties"]["model"] = {"type": "string", "enum": list(models), "title": "Model"}
    if keyed:
        description["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return description
