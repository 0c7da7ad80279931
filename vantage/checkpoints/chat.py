"""Chat templates. They come with checkpoints, from strangers: they run in Jinja's sandbox."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vantage.errors import BadInput, CheckpointError

LONGEST = 2**20  # characters of a template, and of anything it makes by repetition


class Sandbox(ImmutableSandboxedEnvironment):
    """Also refuses the operators with which a short template makes a huge text or number."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if isinstance(x, (str, bytes, list, tuple)) else abs(x) for x in (left, right)]
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"the operator {operator!r} is not for templates")
        if operator == "*" and sizes[0] * sizes[1] > LONGEST and not _numbers(left, right):
            raise SecurityError(f"a repetition of {sizes[0]} × {sizes[1]} is too long")
        return super().call_binop(context, operator, left, right)


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The template with these variables. What it refuses is bad input; what the sandbox refuses is a bad file."""
    if len(template) > LONGEST:
        raise CheckpointError(f"the chat template has {len(template):,} characters, more than any real one")
    try:
        return _compiled(template).render(**variables)
    except SecurityError as e:
        raise CheckpointError(f"the chat template tries what is not allowed: {e}") from e
    except TemplateSyntaxError as e:
        raise CheckpointError(f"the chat template is not Jinja: {e}") from e
    except TemplateError as e:
        raise BadInput(f"the chat template refuses these messages: {e}") from e
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        raise BadInput(f"the chat template cannot be used with these messages: {e!r}") from e


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    env = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    env.globals["strftime_now"] = _now
    return env.from_string(template)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Jinja's own would escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
