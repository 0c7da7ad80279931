"""Where an answer ends, as frozen data. ``vantage.generation.stops`` watches for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from vantage.errors import BadInput


@final
@dataclass(frozen=True)
class Stop:
    """An answer ends before any of these strings, and with any of these tokens."""

    strings: tuple[str, ...] = ()
    tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if isinstance(self.strings, str):
            raise BadInput(f"strings={self.strings!r}: give a tuple of strings")
        object.__setattr__(self, "strings", tuple(self.strings))
        object.__setattr__(self, "tokens", frozenset(self.tokens))
        for string in self.strings:
            if not isinstance(string, str) or not string:
                raise BadInput(f"a stop string {string!r}: give a text that is not empty")
        for token in self.tokens:
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise BadInput(f"a stop token {token!r}: give a number, 0 or more")

    @staticmethod
    def of(stop: Stop | str | int | Iterable[str | int] | None) -> Stop:
        """From what a user may say: a string, a token, or several of either."""
        if stop is None or isinstance(stop, Stop):
            return stop or Stop()
        if not isinstance(stop, (str, int, Iterable)):
            raise BadInput(f"stop={stop!r}: give strings and tokens")
        several = [stop] if isinstance(stop, (str, int)) else list(stop)
        strings = [one for one in several if isinstance(one, str)]
        tokens = [one for one in several if isinstance(one, int)]
        if len(strings) + len(tokens) < len(several):
            raise BadInput(f"stop={stop!r}: give strings and tokens")
        return Stop(tuple(strings), frozenset(tokens))

    def also(self, tokens: Iterable[int | None]) -> Stop:
        """With these tokens too."""
        return Stop(self.strings, self.tokens | {token for token in tokens if token is not None})
