"""What is wrong with a request's fields, in sentences: where it is, what was given and what is wanted.

Pydantic knows it all, and words it for who wrote the models. Here its errors are put together by place (a field that
may be one of several kinds has an error for each) and worded for who sent the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vantage.errors import did_you_mean
from vantage.serve import bounds as b
from vantage.serve.errors import ApiError, bad

Errors = Sequence[Mapping[str, Any]]
Path = tuple[str | int, ...]
SHOWN = 32  # characters of a text that is shown; longer ones are counted
WORDS = frozenset({"literal_error", "union_tag_invalid"})  # where a text is one of a few words, it is shown
SIZES = {"string_too_short": "character", "string_too_long": "character", "too_short": "entry", "too_long": "entry"}
PATTERNS = {
    b.NAME: "1 to 64 letters, digits, _ and -",
    b.TOKEN_KEY: "the number of a token, in digits",
    b.KEEP: "'weights', 'stats' or 'top1' to 'top999'",
}


def explain(errors: Errors, body: Any, known: Iterable[str] = ()) -> ApiError:
    """The refusal of a body with these errors. ``known``: the fields there are, for one that is misspelt."""
    places: dict[Path, list[Mapping[str, Any]]] = {}
    for error in errors:
        places.setdefault(_path(error, body), []).append(error)
    # of the kinds that a field may be, the one that was meant is the one that fitted furthest
    first = next(iter(places))
    path = max((place for place in places if place[:1] == first[:1]), key=len)
    here = places[path]
    where = ".".join(str(part)[:64] for part in path)[:200]
    if here[0]["type"] == "extra_forbidden":
        guess = did_you_mean(path[-1], known) if len(path) == 1 else ""
        return bad(f"{where} is not a field that is known here.{guess}"[:500], where, "unknown_parameter")
    return bad(_sentence(where or "the body", here), where or None)


def _sentence(where: str, errors: Errors) -> str:
    if any(error["type"] in ("missing", "union_tag_not_found") for error in errors):
        return f"{where} is missing, and must be given"
    if all(error["type"] in SIZES for error in errors):
        return f"{where} {_size(errors[0])}"
    wanted = list(dict.fromkeys(_wanted(error) for error in errors))
    shown = any(error["type"] in WORDS for error in errors)
    tags = [error["ctx"]["tag"] for error in errors if error["type"] == "union_tag_invalid"]
    value = tags[0] if tags else errors[0]["input"]
    return f"{where} is {_described(value, shown)}, and must be {' or '.join(wanted)}"[:500]


# ---- where


def _path(error: Mapping[str, Any], body: Any) -> Path:
    """Where in the body an error is. Pydantic's own place also names the kinds that were tried on the way."""
    parts = list(error["loc"][1:] if error["loc"][:1] == ("body",) else error["loc"])
    missing = error["type"] == "missing"
    path = _walk(parts, body, error["input"], missing)
    if path is None:  # the value was changed on the way: what is found of the place will do
        path = tuple(part for part in parts if isinstance(part, int) or str(part).isidentifier())
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):  # it is the tag that is wrong
        path = (*path, _tag(error))
    return path


def _walk(parts: Sequence[Any], value: Any, target: Any, missing: bool) -> Path | None:
    """The steps among these that lead from a value to the one that is wrong; for one that is missing, its name too."""
    if not parts:
        return () if value is target and not missing else None
    part, rest = parts[0], parts[1:]
    if missing and not rest and value is target:
        return (part,)
    steps = isinstance(value, Mapping) and part in value
    steps = steps or (isinstance(value, list) and isinstance(part, int) and part < len(value))
    if steps and (path := _walk(rest, value[part], target, missing)) is not None:
        return (part, *path)
    if steps and rest == ["[key]"]:  # an object's key is wrong, not its value
        return (part,)
    return _walk(rest, value, target, missing)


def _tag(error: Mapping[str, Any]) -> str:
    """The field that says which kind an object is. Where a function looks for it, it is called type."""
    name = error["ctx"]["discriminator"]
    return "type" if name.endswith("()") else name.strip("'")


# ---- what


def _size(error: Mapping[str, Any]) -> str:
    """How large a text, list or object is, and how large it may be."""
    value, about, unit = error["input"], error["ctx"], SIZES[error["type"]]
    unit = "field" if isinstance(value, dict) else unit
    has = f"has {_count(len(value), unit)}" if len(value) else "is empty"
    if "min_length" in about:
        return f"{has}, and must have at least {_count(about['min_length'], unit)}"
    return f"{has}, and must {f'have at most {most:,}' if (most := about['max_length']) else 'be empty'}"


def _described(value: Any, shown: bool) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return _number(value) if len(str(value)) <= SHOWN else f"a number of {len(str(value))} digits"
        case str() if shown and len(value) <= SHOWN:
            return repr(value)
        case str():
            return f"a text of {_count(len(value), 'character')}" if value else "an empty text"
        case list():
            return f"a list of {_count(len(value), 'entry')}" if value else "an empty list"
        case dict():
            return f"an object of {_count(len(value), 'field')}" if value else "an empty object"
        case _:
            return "something else"


def _count(n: int, unit: str) -> str:
    plural = f"{unit[:-1]}ies" if unit.endswith("y") else f"{unit}s"
    return f"{n:,} {unit if n == 1 else plural}"


def _wanted(error: Mapping[str, Any]) -> str:
    words = WANTED.get(error["type"], "another value")
    return words if isinstance(words, str) else words(error.get("ctx", {}))


def _length(kind: str, unit: str) -> Callable[[Mapping[str, Any]], str]:
    def words(about: Mapping[str, Any]) -> str:
        named = "an object" if about.get("field_type") == "Dictionary" else kind
        if "min_length" in about:
            return f"{named} of at least {_count(about['min_length'], unit)}"
        return f"{named} of at most {_count(about['max_length'], unit)}"

    return words


def _number(x: float) -> str:
    """Thousands are set apart; what is written with an exponent stays so."""
    return f"{x:,}" if isinstance(x, int) else f"{int(x):,}" if x.is_integer() and abs(x) < 1e15 else f"{x:g}"


WANTED: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    "string_type": "text",
    "string_unicode": "text in Unicode",
    "string_too_short": _length("a text", "character"),
    "string_too_long": _length("a text", "character"),
    "string_pattern_mismatch": lambda about: PATTERNS.get(about["pattern"], "a text of another form"),
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number that is not as large",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "greater_than": lambda about: f"more than {_number(about['gt'])}",
    "greater_than_equal": lambda about: f"at least {_number(about['ge'])}",
    "less_than": lambda about: f"less than {_number(about['lt'])}",
    "less_than_equal": lambda about: f"at most {_number(about['le'])}",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "none_required": "null",
    "list_type": "a list",
    "too_short": _length("a list", "entry"),
    "too_long": _length("a list", "entry"),
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": lambda about: str(about["expected"]),
    "union_tag_invalid": lambda about: str(about["expected_tags"]).replace(", ", " or "),
    "value_error": lambda about: str(about["error"]),
}
