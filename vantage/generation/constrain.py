"""Answers that fit a JSON schema or a regular expression: after each token, only what can still fit may follow.

The grammars are llguidance's. It works on the bytes of the tokens, so a token may begin in one part
of the grammar and end in another, and a character may be made of several tokens.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput, Refused

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


@final
class Grammar:
    """A ``Constraint``: the state of one answer in a grammar. ``fork`` gives another answer its own."""

    def __init__(self, matcher: LLMatcher, ends: frozenset[int]):
        self._matcher, self._ends = matcher, ends

    def allow(self, logits_V: Tensor) -> None:
        """Sets what cannot come next to -inf, in place."""
        mask = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        self._sound()
        n = min(len(mask), len(logits_V))
        logits_V[:n].masked_fill_((mask[:n] == 0).to(logits_V.device), float("-inf"))
        logits_V[n:] = float("-inf")  # rows of the head that stand for no token

    def take(self, token: int) -> None:
        """This token has come."""
        if token in self._ends and self.done():
            return
        if self._matcher.validate_tokens([token]) != 1:  # asked first: a matcher that has failed stays so
            self._sound()
            raise BadInput(f"token {token} cannot come here: the grammar does not allow it")
        self._matcher.consume_token(token)
        self._sound()

    def done(self) -> bool:
        """Nothing but an end may follow."""
        return self._matcher.is_stopped()

    def complete(self) -> bool:
        """Whether what has come is an answer as it stands."""
        return self._matcher.is_accepting()

    def fork(self) -> Grammar:
        """The same state, to go on with independently."""
        return Grammar(self._matcher.deep_copy(), self._ends)

    def _sound(self) -> None:
        if self._matcher.is_error():
            raise Refused(f"the grammar cannot be followed any further: {_first_line(self._matcher.get_error())}")


def json_schema(schema: Mapping[str, Any] | bool | str, tokenizer: Tokenizer, *, ends: Sequence[int] = ()) -> Grammar:
    """Answers are JSON that the schema (a mapping, or JSON text) admits.

    What cannot be held to (``not``, ``uniqueItems``, remote references …) is refused, not ignored.
    ``ends``: the tokens that may end the answer; the tokenizer's end of text if none is given.
    """
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
        grammar = LLMatcher.grammar_from_json_schema("{}" if parsed is True else text, overrides=JSON_OPTIONS)
    except ValueError as e:
        raise BadInput(f"this JSON schema cannot be used: {_first_line(str(e))}") from e
    return _compiled("JSON schema", grammar, tokenizer, ends)


def regex(pattern: str, tokenizer: Tokenizer, *, ends: Sequence[int] = ()) -> Grammar:
    """Answers match the whole pattern, in the syntax of Rust's ``regex``: no look-around, no back-references."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= REGEX_CHARACTERS:
        raise BadInput(f"a regex of 1 to {REGEX_CHARACTERS:,} characters is wanted, not {str(pattern)[:40]!r}")
    whole = pattern.removeprefix("^")
    if whole.endswith("$") and (len(whole) - len(whole[:-1].rstrip("\\"))) % 2 == 1:
        whole = whole[:-1]  # the anchors say what is meant anyway; a `$` behind a backslash is a character
    return _compiled("regex", LLMatcher.grammar_from_regex(whole), tokenizer, ends)


def choice(options: Sequence[str], tokenizer: Tokenizer, *, ends: Sequence[int] = ()) -> Grammar:
    """Answers are one of these texts."""
    if not options or not all(isinstance(option, str) and option for option in options):
        raise BadInput("a choice is among texts that are not empty: give at least one")
    pattern = "|".join(re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", option) for option in options)
    if len(pattern) > CHOICE_CHARACTERS:
        raise BadInput(f"a choice among {len(pattern):,} characters: {CHOICE_CHARACTERS:,} is the most")
    return _compiled("choice", LLMatcher.grammar_from_regex(f"(?:{pattern})"), tokenizer, ends)


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


def _compiled(what: str, grammar: str, tokenizer: Tokenizer, ends: Sequence[int]) -> Grammar:
    vocabulary = _vocabulary(tokenizer, tuple(ends))
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # what nothing can satisfy shows here
    if matcher.is_error():
        raise BadInput(f"this {what} cannot be used: {_first_line(matcher.get_error())}")
    return Grammar(matcher, frozenset(vocabulary.eos_tokens))


def _first_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "it is too large")
    if "NoExtension" in message:
        return "nothing can satisfy it"
    return message.removeprefix("error:").strip()[:300]


# ---- tokenizers

_vocabularies: WeakKeyDictionary[Tokenizer, dict[tuple[int, ...], LLTokenizer]] = WeakKeyDictionary()
_vocabularies_lock = threading.Lock()


def _vocabulary(tokenizer: Tokenizer, ends: tuple[int, ...]) -> LLTokenizer:
    """llguidance's view of the vocabulary. It takes half a second to make, so it is kept."""
    ends = ends or (() if tokenizer.eos is None else (tokenizer.eos,))
    if not ends:
        raise BadInput("this tokenizer has no end of text: say which tokens may end an answer (ends=)")
    if not all(0 <= end < len(tokenizer) for end in ends):
        raise BadInput(f"ends={list(ends)}: the tokenizer has tokens 0 to {len(tokenizer) - 1}")
    with _vocabularies_lock:
        known = _vocabularies.setdefault(tokenizer, {})
        if ends not in known:
            try:
                known[ends] = LLTokenizer(tokenizer.backend.to_str(), n_vocab=len(tokenizer), eos_token=list(ends))
            except (ValueError, RuntimeError) as e:
                raise Refused(f"this tokenizer cannot be constrained: {_first_line(str(e))}") from e
        return known[ends]
