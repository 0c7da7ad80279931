"""How far a text may go, for everything that generates.

Two lengths count: the context that the model was made for (``model.context_length``), and its last position where
positions end (``model.max_positions``: a learned table). The rule is one:

- No text goes past the last position. An answer ends there with ``finish_reason`` "length"; a longer prompt is refused.
- ``generate``, streams, ``beam_search`` and the engine may go past the context where positions have no end: such
  positions were never trained. They warn once (``ContextWarning``) and count the tokens (``beyond_context``).
- Conversations and the server, which go on for long, stay inside the context: an answer ends with "length" where it is
  full, and what leaves no room for an answer is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from vantage.errors import BadInput, ContextWarning, Refused, warn
from vantage.model import Model


def check_evaluating(model: Model) -> None:
    """Dropout, and positions that are drawn at random, are for training alone."""
    if model.training:
        raise BadInput("the model is in training mode: call model.eval() before it generates")


@final
@dataclass(frozen=True)
class GenerationLimits:
    """``original``: the length past which frequencies change; ``context``: what the model was made for; ``table``:
    how many positions there are at all; ``source``: what an encoder was made to read."""

    original: int | None
    context: int | None
    table: int | None
    source: int | None

    @staticmethod
    def of(model: Model) -> GenerationLimits:
        """Raises, by name, where a model cannot generate."""
        if (reason := model.spec.why_no_generation) is not None:
            raise Refused(reason)
        check_evaluating(model)
        source = None if model.encoder is None else model.encoder.context_length
        original, context = model.spec.original_length, model.context_length
        context = None if context == original else context  # dynamic NTK is made to go on past it
        return GenerationLimits(original, context, model.max_positions, source)

    def declared(self, tokens: int) -> int | None:
        """The length to declare for so many tokens: doubled until they fit, so that growing is seldom."""
        if self.original is None:
            return None
        length = self.original
        while length < tokens:
            length *= 2
        return length

    def cut(self, prompt: int, max_tokens: int) -> int:
        """How many tokens can follow. The last one need not be read, so it needs no position."""
        if self.table is None:
            return max_tokens
        if prompt > self.table:
            raise BadInput(f"a prompt of {prompt} tokens: this model has {self.table} positions, so give at most that")
        return min(max_tokens, self.table - prompt + 1)


@final
class ContextWatch:
    """What goes past the context in one call: it is warned of once, when ``warn`` is called after it has happened."""

    def __init__(self, limits: GenerationLimits):
        self.limits = limits
        self._message: str | None = None
        self._warned = False

    def prompt(self, tokens: int, source: int = 0) -> None:
        """A prompt of so many tokens is to be read, and for an encoder a source."""
        limits = self.limits
        if limits.source is not None and source > limits.source:
            self._message = _too_long(f"the source has {source:,} tokens", limits.source, "give a shorter one")
        if limits.context is not None and tokens > limits.context:
            self._message = _too_long(f"the prompt has {tokens:,} tokens", limits.context, "give a shorter one")

    def passes(self, tokens: int) -> bool:
        """Whether a token that follows so many comes from past the context."""
        context = self.limits.context
        if context is None or tokens <= context:
            return False
        if self._message is None:
            advice = "ask for fewer max_tokens, or give a shorter prompt"
            self._message = _too_long("prompt and answer go further", context, advice)
        return True

    def ended(self, prompt: int, answer: int, max_tokens: int) -> None:
        """An answer of so many tokens has ended for its length: before ``max_tokens``, by the model's last position."""
        if answer < max_tokens and self._message is None:
            self._message = (
                f"the answer ended after {answer:,} of {max_tokens:,} tokens: this model has {self.limits.table:,} "
                f"positions, and the prompt takes {prompt:,} of them. Give a shorter prompt"
            )

    def warn(self) -> None:
        if self._message is not None and not self._warned:
            self._warned = True
            warn(self._message, ContextWarning)


def _too_long(what: str, limit: int, advice: str) -> str:
    return (
        f"this model was made for {limit:,} tokens, and {what}: it has never seen later positions, and its "
        f"output there is often nonsense. To stay inside, {advice}"
    )
