"""What an answer is held to: a JSON schema, a pattern or a choice, however a request spells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from vantage.errors import BadInput
from vantage.generation import Constraint, constrain
from vantage.serve.errors import bad
from vantage.serve.model_pool import LoadedModel
from vantage.serve.requests import AsSchema, AsText, Generates


@final
@dataclass(frozen=True)
class AnswerFormat:
    """``field``: where the request asks for it."""

    field: str
    kind: Literal["schema", "regex", "choice"]
    value: Any


def answer_format(
    body: Generates, offered: Sequence[dict[str, Any]] = (), call: dict[str, Any] | None = None
) -> AnswerFormat | None:
    """The one format that is asked for. ``offered``: tools; ``call``: the schema of a call, where the answer is one."""
    formats = [*_formats(body)]
    if call is not None:
        formats.append(AnswerFormat("tool_choice", "schema", call))
    if len(formats) > 1:
        one, other = formats[0].field, formats[1].field
        raise bad(f"{one} and {other}: an answer can be held to one of them", one)
    if formats and offered and call is None and formats[0].kind == "schema":
        field = formats[0].field
        raise bad(f"{field} and tools: an answer can be held to one of them", field)
    return formats[0] if formats else None


def _formats(body: Generates) -> list[AnswerFormat]:
    wanted, structured = body.response_format, body.structured_outputs
    formats: list[AnswerFormat] = []
    if isinstance(wanted, AsSchema):
        formats.append(AnswerFormat("response_format", "schema", wanted.json_schema.schema_))
    elif wanted is not None and not isinstance(wanted, AsText):
        formats.append(AnswerFormat("response_format", "schema", {"type": "object"}))
    spelled: list[tuple[str, Literal["schema", "regex", "choice"], Any]] = [
        ("regex", "regex", body.regex),
        ("guided_json", "schema", body.guided_json),
        ("guided_regex", "regex", body.guided_regex),
        ("guided_choice", "choice", body.guided_choice),
    ]
    if structured is not None:
        spelled += [
            ("structured_outputs.json", "schema", structured.json_),
            ("structured_outputs.json_object", "schema", {"type": "object"} if structured.json_object else None),
            ("structured_outputs.regex", "regex", structured.regex),
            ("structured_outputs.choice", "choice", structured.choice),
        ]
        if all(value is None for name, _, value in spelled if name.startswith("structured_outputs.")):
            raise bad("structured_outputs is empty: give json, json_object, regex or choice", "structured_outputs")
    return [*formats, *(AnswerFormat(*one) for one in spelled if one[2] is not None)]


def constraint_of(loaded: LoadedModel, wanted: AnswerFormat | None) -> Constraint | None:
    if wanted is None:
        return None
    make = {"schema": constrain.json_schema, "regex": constrain.regex, "choice": constrain.choice}[wanted.kind]
    try:
        return make(wanted.value, loaded.safe_tokenizer.tokenizer, ends=sorted(loaded.ends))
    except BadInput as e:
        raise bad(str(e), wanted.field, "invalid_grammar") from e
