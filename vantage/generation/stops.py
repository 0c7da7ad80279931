"""When an answer is over, and which of its text may be shown already.

A token may end in the middle of a character, and a text in the middle of what may become a stop
string: both are held back until it is known what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

from vantage.checkpoints.tokenizer import REPLACEMENT
from vantage.errors import BadInput
from vantage.generation.sampling import Constraint
from vantage.spec.stop import Stop

MAX_CHARACTER_TOKENS = 8  # tokens that a character may be waited for; it has 4 bytes at most


class Decodes(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...


@final
class Detokeniser:
    """Tokens in, text out, never half a character.

    A token's text may depend on the tokens before it (a leading space, a character in several
    tokens). So a few tokens back are decoded with it, and only what they did not say is new.
    """

    def __init__(self, tokenizer: Decodes):
        self._tokenizer = tokenizer
        self._window: list[int] = []  # the tokens that are decoded together
        self._shown = 0  # how many of those have been shown
        self._before = ""  # what those say

    def push(self, token: int) -> str:
        """The text that is certain now."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        # after so many tokens it is no half character but bytes that never become one
        half = text.endswith(REPLACEMENT) and len(self._window) - self._shown < MAX_CHARACTER_TOKENS
        if half or len(text) <= len(self._before):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """What was held back, as it stands: no more tokens come."""
        if self._shown == len(self._window):
            return ""
        return self._show(self._tokenizer.decode(self._window))

    def _show(self, text: str) -> str:
        new = text[len(self._before) :]
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        self._before = self._tokenizer.decode(self._window)
        return new


@final
class StopWatcher:
    """The text of one answer as it grows, up to the first stop string."""

    def __init__(self, tokenizer: Decodes, strings: Sequence[str] = ()):
        self._detokeniser = Detokeniser(tokenizer)
        self._strings = tuple(strings)
        self._held = ""
        self.stopped: str | None = None  # the stop string that ended it

    def push(self, token: int) -> str:
        """The text that is safe to show now. Nothing more comes once ``stopped`` is set."""
        return self._take(self._detokeniser.push(token), end=False)

    def flush(self) -> str:
        """What was held back: the answer has ended for another reason."""
        return self._take(self._detokeniser.flush(), end=True)

    def _take(self, text: str, *, end: bool) -> str:
        if self.stopped is not None:
            return ""
        self._held += text
        matches = [(self._held.find(string), -len(string), string) for string in self._strings if string in self._held]
        if matches:
            at, _, self.stopped = min(matches)
            shown, self._held = self._held[:at], ""
            return shown
        keep = 0 if end else self._risk()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    def _risk(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        longest = max((len(string) for string in self._strings), default=0)
        tails = range(min(len(self._held), longest - 1), 0, -1)
        return next((n for n in tails if any(s.startswith(self._held[-n:]) for s in self._strings)), 0)


@final
class AnswerText:
    """One answer as it grows: the text that may be shown, and the rule for when it is over."""

    def __init__(self, stop: Stop, tokenizer: Decodes | None, *, max_tokens: int, constraint: Constraint | None = None):
        if stop.strings and tokenizer is None:
            raise BadInput("stop strings need a tokenizer: give stop tokens, or a model that has one")
        self._stop, self._constraint = stop, constraint
        self._watcher = None if tokenizer is None else StopWatcher(tokenizer, stop.strings)
        self._new: list[str] = []
        self.left = max_tokens  # tokens that may still come
        self.ended_by: str | None = None  # "stop token", "stop string", "constraint" or "length"; None: it goes on

    @property
    def finish(self) -> str | None:
        """ "stop" or "length"; ``None``: it goes on."""
        return self.ended_by if self.ended_by in (None, "length") else "stop"

    def push(self, token: int) -> bool:
        """Take a token; whether it is the last one."""
        self.left -= 1
        if token in self._stop.tokens:  # it has no text of its own
            self.ended_by = "stop token"
            return True
        if self._watcher is not None:
            self._new.append(self._watcher.push(token))
            if self._watcher.stopped is not None:
                self.ended_by = "stop string"
                return True
        if self._constraint is not None and self._constraint.done():
            self.ended_by = "constraint"
        elif self.left < 1:
            self.ended_by = "length"
        return self.ended_by is not None

    def take(self) -> str:
        """The text that has become certain since the last time; all of it once the answer is over."""
        if self.ended_by is not None:
            return self.flush()
        text, self._new = "".join(self._new), []
        return text

    def flush(self) -> str:
        """What is left, as it stands: no more tokens come."""
        text, self._new = "".join(self._new), []
        return text if self._watcher is None else text + self._watcher.flush()
