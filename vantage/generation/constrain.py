"""Answers that fit a JSON schema or a regular expression: after each token, only what can still fit may follow.

The grammars are llguidance's (``vantage.spec.grammars`` writes them). It works on the bytes of the tokens, so a token
may begin in one part of the grammar and end in another, and a character may be made of several tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput, Refused
from vantage.spec.grammars import LIMITS, choice_grammar, first_line, regex_grammar, schema_grammar, unusable


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
            raise Refused(f"the grammar cannot be followed any further: {first_line(self._matcher.get_error())}")


def json_schema(schema: Mapping[str, Any] | bool | str, tokenizer: Tokenizer, *, ends: Sequence[int] = ()) -> Grammar:
    """Answers are JSON that the schema (a mapping, or JSON text) admits.

    What cannot be held to (``not``, ``uniqueItems``, remote references …) is refused, not ignored.
    ``ends``: the tokens that may end the answer; the tokenizer's end of text if none is given.
    """
    return _compiled("JSON schema", schema_grammar(schema), tokenizer, ends)


def regex(pattern: str, tokenizer: Tokenizer, *, ends: Sequence[int] = ()) -> Grammar:
    """Answers match the whole pattern, in the syntax of Rust's ``regex``: no look-around, no back-references."""
    return _compiled("regex", regex_grammar(pattern), tokenizer, ends)


def choice(options: Sequence[str], tokenizer: Tokenizer, *, ends: Sequence[int] = ()) -> Grammar:
    """Answers are one of these texts."""
    return _compiled("choice", choice_grammar(options), tokenizer, ends)


def _compiled(what: str, grammar: str, tokenizer: Tokenizer, ends: Sequence[int]) -> Grammar:
    vocabulary = _vocabulary(tokenizer, tuple(ends))
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # what nothing can satisfy shows here
    if matcher.is_error():
        raise unusable(what, matcher.get_error())
    return Grammar(matcher, frozenset(vocabulary.eos_tokens))


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
                raise Refused(f"this tokenizer cannot be constrained: {first_line(str(e))}") from e
        return known[ends]
