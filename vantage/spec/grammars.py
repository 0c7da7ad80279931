"""Forms that an answer can be held to: JSON schemas, regular expressions and choices, as grammars of llguidance.

Nothing here needs torch or a tokenizer, so a command can refuse a broken one at once. ``generation.constrain`` follows
a grammar token by token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from vantage.errors import BadInput

# What a stranger may ask for: a request of this size compiles in well under a second.
SCHEMA_CHARACTERS, SCHEMA_PARTS, SCHEMA_KEYS = 65_536, 10_000, 512
REGEX_CHARACTERS = CHOICE_CHARACTERS = 8_192
LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=200_000,  # about 15 ms a token
    step_max_items=50_000,
    max_lexer_states=30_000,  # about 60 MB
    max_grammar_size=100_000,
    verbose_errors=False,
)
# At most one blank or line break where JSON allows any number: a model must not fill its answer with them.
JSON_OPTIONS: Any = {"whitespace_flexible": True, "whitespace_pattern": r"[ \n]", "lenient": False}


def check_schema(schema: Mapping[str, Any] | bool | str) -> None:
    """Refuse a JSON schema that no answer could be held to, whatever the model."""
    _check("JSON schema", schema_grammar(schema))


def check_regex(pattern: str) -> None:
    """Refuse a pattern that no answer could be held to, whatever the model."""
    _check("regex", regex_grammar(pattern))


def schema_grammar(schema: Mapping[str, Any] | bool | str) -> str:
    """JSON that the schema (a mapping, or JSON text) admits."""
    text = schema if isinstance(schema, str) else _written(schema)
    if len(text) > SCHEMA_CHARACTERS:
        raise BadInput(f"a JSON schema of {len(text):,} characters: {SCHEMA_CHARACTERS:,} is the most")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise BadInput(f"the JSON schema is not JSON: {e}") from e
    if not isinstance(parsed, (dict, bool)):
        raise BadInput(f"a JSON schema is an object or a boolean, not {text[:40]!r}")
    if parsed is False:
        raise BadInput("this JSON schema is false: nothing can satisfy it")
    _check_parts(parsed)
    try:
        return LLMatcher.grammar_from_json_schema("{}" if parsed is True else text, overrides=JSON_OPTIONS)
    except ValueError as e:
        raise unusable("JSON schema", str(e)) from e


def regex_grammar(pattern: str) -> str:
    """Texts that match the whole pattern."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= REGEX_CHARACTERS:
        raise BadInput(f"a regex of 1 to {REGEX_CHARACTERS:,} characters is wanted, not {str(pattern)[:40]!r}")
    whole = pattern.removeprefix("^")
    if whole.endswith("$") and (len(whole) - len(whole[:-1].rstrip("\\"))) % 2 == 1:
        whole = whole[:-1]  # the anchors say what is meant anyway; a `$` behind a backslash is a character
    return LLMatcher.grammar_from_regex(whole)


def choice_grammar(options: Sequence[str]) -> str:
    """One of these texts."""
    if not options or not all(isinstance(option, str) and option for option in options):
        raise BadInput("a choice is among texts that are not empty: give at least one")
    pattern = "|".join(re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", option) for option in options)
    if len(pattern) > CHOICE_CHARACTERS:
        raise BadInput(f"a choice among {len(pattern):,} characters: {CHOICE_CHARACTERS:,} is the most")
    return LLMatcher.grammar_from_regex(f"(?:{pattern})")


def unusable(what: str, error: str) -> BadInput:
    """What llguidance says of a grammar, for the one who asked for it."""
    return BadInput(f"this {what} cannot be used: {first_line(error)}")


def first_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "it is too large")
    if "NoExtension" in message:
        return "nothing can satisfy it"
    return message.removeprefix("error:").strip()[:300]


def given_form(**forms: Any) -> str | None:
    """The name of the one that is given. An answer cannot be held to several."""
    names = [name for name, value in forms.items() if value is not None]
    if len(names) > 1:
        raise BadInput(f"{' and '.join(names)}: an answer can be held to one of them")
    return names[0] if names else None


def _check(what: str, grammar: str) -> None:
    if error := LLMatcher.validate_grammar(grammar, limits=LIMITS):
        raise unusable(what, error)


def _written(schema: object) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as e:
        raise BadInput(f"the JSON schema cannot be written as JSON: {e}") from e


def _check_parts(schema: object) -> None:
    """Compiling takes the square of the keys of an object, so they are counted first."""
    todo, parts = [schema], 0
    while todo:
        part = todo.pop()
        parts += 1
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        if isinstance(part, dict) and len(part) > SCHEMA_KEYS:
            raise BadInput(f"a JSON schema with {len(part)} keys in one object: {SCHEMA_KEYS} is the most")
        todo += inner
        if parts + len(todo) > SCHEMA_PARTS:
            raise BadInput(f"a JSON schema of more than {SCHEMA_PARTS:,} parts: make it smaller")
