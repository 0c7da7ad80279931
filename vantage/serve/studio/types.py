"""The page's types, from the models that the API reads and answers with: ``python -m vantage.serve.studio.types``.

Writes ``web/src/generated/api.ts`` of a checkout. A test fails where the file differs from what is written here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from vantage.serve.studio.answers import StudioAnswer
from vantage.serve.studio.pages import routers

FILE = Path(__file__).parents[3] / "web/src/generated/api.ts"
HEAD = """\
// Written by `make types` (vantage/serve/studio/types.py) from the models of the studio's API. Do not edit.
"""
DEFS = "#/$defs/"
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def typescript() -> str:
    """The whole file."""
    routes = [route for router in routers() for route in router.routes]
    requests = schemas(bodies(route for route in routes if isinstance(route, APIRoute)), "validation")
    answers = schemas(subclasses(StudioAnswer), "serialization")
    parts = {name: declared(name, schema, answer=name in answers) for name, schema in (requests | answers).items()}
    return "\n".join([HEAD, *(parts[name] for name in sorted(parts))])


def subclasses(base: type[BaseModel]) -> list[type[BaseModel]]:
    """All of them, however far down; a model of another studio (in a test) is none of ours."""
    every = [one for sub in base.__subclasses__() for one in (sub, *subclasses(sub))]
    return [one for one in every if one.__module__.startswith("vantage.serve.studio.")]


def bodies(routes: Iterable[APIRoute]) -> list[type[BaseModel]]:
    """The models of what is sent to the routes."""
    models: dict[type[BaseModel], None] = {}  # in their order, each once
    for route in routes:
        for field in route.dependant.body_params:
            model = field.field_info.annotation
            assert isinstance(model, type), f"the body of {route.path} is no model"
            assert issubclass(model, BaseModel), f"the body of {route.path} is no model"
            models[model] = None
    return list(models)


def schemas(models: list[type[BaseModel]], mode: Any) -> dict[str, Any]:
    """By name, with everything that they refer to."""
    if not models:
        return {}
    _, whole = models_json_schema([(model, mode) for model in models])
    return whole["$defs"]


def declared(name: str, schema: dict[str, Any], *, answer: bool) -> str:
    """One interface. Everything in an answer is there; what is only in requests may leave out what has a default."""
    lines = [*_comment(schema), f"export interface {name} {{"]
    required = schema.get("required", ())
    for field, one in schema.get("properties", {}).items():
        mark = "" if answer or field in required else "?"
        lines.append(f"  {field}{mark}: {written(one)};")
    return "\n".join([*lines, "}", ""])


def written(schema: dict[str, Any]) -> str:
    """A type, in TypeScript."""
    if "$ref" in schema:
        return schema["$ref"].removeprefix(DEFS)
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return " | ".join(f'"{value}"' if isinstance(value, str) else str(value).lower() for value in values)
    for either in ("anyOf", "oneOf"):
        if either in schema:
            return " | ".join(dict.fromkeys(written(one) for one in schema[either]))
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(written(one) for one in schema['prefixItems'])}]"
        items = schema.get("items", {})
        either = any(word in items for word in ("anyOf", "oneOf", "enum"))
        return f"({written(items)})[]" if either else f"{written(items)}[]"
    if kind == "object":
        inside = schema.get("additionalProperties", {})
        return f"Record<string, {written(inside) if isinstance(inside, dict) else 'unknown'}>"
    return PLAIN.get(str(kind), "unknown")


def _comment(schema: dict[str, Any]) -> Iterator[str]:
    text = [line.strip().replace("``", "`") for line in schema.get("description", "").strip().splitlines()]
    if len(text) == 1:
        yield f"/** {text[0]} */"
    elif text:
        yield "/**"
        yield from (f" * {line}".rstrip() for line in text)
        yield " */"


def main() -> int:
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(typescript(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
