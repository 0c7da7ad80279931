"""How the prompts of a call are answered: how tokens are chosen, where an answer ends, and what form it must have."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from vantage.errors import BadInput
from vantage.generation.prompts import end_tokens, start_token
from vantage.generation.sampling import Constraint, Sampling, fork_constraint
from vantage.generation.stops import Stop
from vantage.model import Model

FORMS = "give a JSON schema, or a class: pydantic's BaseModel, a dataclass or a TypedDict"


class AnswerForm(NamedTuple):
    """What answers are held to, and how their text is read: see ``Generation.parsed``."""

    constraint: Constraint | None = None
    parse: Callable[[str], Any] | None = None

    def each(self, count: int) -> Iterator[Constraint | None]:
        """One constraint for each of so many answers."""
        for _ in range(count - 1):
            yield fork_constraint(self.constraint)
        yield self.constraint


class Begin(NamedTuple):
    """What an answer goes on from, and what an encoder reads for it."""

    tokens: tuple[int, ...]
    source: tuple[int, ...] | None


@final
@dataclass(frozen=True, eq=False)
class AnswerOptions:
    """The same for every prompt of a call."""

    max_tokens: int
    sampling: Sampling
    stop: Stop
    form: AnswerForm = AnswerForm()
    n: int = 1
    start: int | None = None  # the token with which an encoder-decoder begins

    def __post_init__(self) -> None:
        for name, value in (("max_tokens", self.max_tokens), ("n", self.n)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInput(f"{name}={value!r}: give a whole number, at least 1")

    def begin(self, model: Model, prompt: Sequence[int]) -> Begin:
        """An encoder-decoder reads the prompt as its source."""
        if model.encoder is None:
            return Begin(tuple(prompt), None)
        return Begin((start_token(model) if self.start is None else self.start,), tuple(prompt))


def answer_form(model: Model, schema: Any, regex: str | None, constraint: Constraint | None) -> AnswerForm:
    """From what a user may say of the form: a ``schema`` is a JSON schema, or a class that pydantic understands."""
    if schema is None and regex is None:
        return AnswerForm(constraint)
    from vantage.spec.grammars import given_form  # with its library, which is loaded only where it is needed

    form = given_form(schema=schema, regex=regex, constraint=constraint)
    if model.tokenizer is None:
        raise BadInput(f"{form} is about texts, and this model has no tokenizer")
    from vantage.generation import constrain

    ends = sorted(end_tokens(model))
    if regex is not None:
        return AnswerForm(constrain.regex(regex, model.tokenizer, ends=ends))
    if isinstance(schema, (Mapping, str, bool)):
        return AnswerForm(constrain.json_schema(schema, model.tokenizer, ends=ends), json.loads)
    json_schema, parse = _of_class(schema)
    return AnswerForm(constrain.json_schema(json_schema, model.tokenizer, ends=ends), parse)


def _of_class(kind: Any) -> tuple[dict[str, Any], Callable[[str], Any]]:
    """The JSON schema of a class, and how a text becomes an object of it."""
    if inspect.isroutine(kind):  # pydantic would describe its arguments
        raise BadInput(f"schema={kind!r}: {FORMS}")
    try:
        pydantic = importlib.import_module("pydantic")
    except ImportError as e:
        raise BadInput(f"schema={kind!r}: for a class, install pydantic (pip install pydantic); or {FORMS}") from e
    try:
        adapter = pydantic.TypeAdapter(kind)
        return adapter.json_schema(schema_generator=_closed()), adapter.validate_json
    except (pydantic.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation) as e:
        reason = str(e).splitlines()[0]
        raise BadInput(f"schema={kind!r}: {FORMS}. pydantic says: {reason}") from e


@functools.cache
def _closed() -> type:
    """Objects have the fields of their class and no others, unless it says so: a model would go on making some up."""
    generator = importlib.import_module("pydantic.json_schema").GenerateJsonSchema

    def closed(name: str) -> Callable[[Any, Any], dict[str, Any]]:
        def schema(self: Any, inner: Any) -> dict[str, Any]:
            return {"additionalProperties": False, **getattr(generator, name)(self, inner)}

        return schema

    names = ("model_schema", "dataclass_schema", "typed_dict_schema")
    return type("ClosedJsonSchema", (generator,), {name: closed(name) for name in names})
