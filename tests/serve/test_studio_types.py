"""The page's types are those of the API: web/src/generated/api.ts is what the models say."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from vantage.figures import Figure, Heat, Line, Lines
from vantage.serve.studio.answers import StudioAnswer
from vantage.serve.studio.pages import routers
from vantage.serve.studio.positions.answers import EncodingFigures
from vantage.serve.studio.types import FILE, declared, schemas, typescript, written


def test_the_file_in_the_page_is_what_the_models_say() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text == typescript(), "web/src/generated/api.ts is not up to date: make types"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer"}, "number"),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, "(number | null)[]"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "string"}]}, "number | string"),
        ({"prefixItems": [{"type": "string"}, {"type": "boolean"}], "type": "array"}, "[string, boolean]"),
        ({"enum": ["a", "b"], "type": "string"}, '"a" | "b"'),
        ({"const": "a"}, '"a"'),
        ({"type": "object", "additionalProperties": {"$ref": "#/$defs/Thing"}}, "Record<string, Thing>"),
        ({"type": "object"}, "Record<string, unknown>"),
        ({}, "unknown"),
    ],
)
def test_a_schema_is_written_as_a_type(schema: dict[str, Any], said: str) -> None:
    assert written(schema) == said


def test_a_request_may_leave_out_what_has_a_default_and_an_answer_has_everything() -> None:
    class Thing(BaseModel):
        """A thing, with ``one``."""

        one: int
        two: str | None = None

    lines = declared("Thing", schemas([Thing], "validation")["Thing"], answer=False).splitlines()
    assert lines == [
        "/** A thing, with `one`. */",
        "export interface Thing {",
        "  one: number;",
        "  two?: string | null;",
        "}",
    ]
    assert "  two: string | null;" in declared("Thing", schemas([Thing], "validation")["Thing"], answer=True)


def test_every_answer_in_json_is_a_model() -> None:
    """Other routes answer with bytes, with a stream of events, or with a file."""
    routes = [route for router in routers() for route in router.routes]
    plain = set()
    for route in routes:
        assert isinstance(route, APIRoute)
        answer = route.response_model
        answer = answer.__args__[0] if getattr(answer, "__origin__", None) is list else answer
        if answer is None:
            plain.add(route.path.removeprefix("/studio/api/"))
        else:
            assert issubclass(answer, StudioAnswer), route.path
    assert plain == {
        "attention/events",
        "attention/{id}/atlas/events",
        "attention/{id}/head",
        "attention/{id}/heads",
        "chat",
        "chat/{conversation}",  # to be deleted
        "chat/{conversation}/events",
        "chat/{conversation}/stop",
        "conversations",  # to be deleted
        "conversations/export",
        "conversations/keeping",
        "compare/{name}/events",
        "cost/measure",
        "lens",
        "lens/ablate",
        "lens/ablate/heads",
        "lens/patch",
        "lens/vector",
        "reports/{name}/",
        "reports/{name}/{file}",
        "studies/{tag}",
    }


def test_figures_go_out_as_they_are_and_what_is_not_finite_as_null() -> None:
    values = [[0.5, None], [1.0, 2.0]]
    heat = Heat("h", "x", "y", values)
    figure = Figure("f", "", (heat, Lines("l", "x", "y", (Line("a", [1, 2], [math.nan, math.inf]),))))
    answer = EncodingFigures(figures=[figure])
    assert answer.figures[0] is figure  # neither copied nor validated: large ones would take long
    sent = json.loads(answer.model_dump_json())["figures"][0]["panels"]
    assert sent[0]["values"] == values
    assert sent[1]["lines"][0]["y"] == [None, None]
