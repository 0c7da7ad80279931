"""What generating gives back. Each prints as its text, and shows itself in a line."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, final

from vantage.generation.prefix import Match
from vantage.generation.sampling import Pick
from vantage.generation.stats import Stats


class Guesses(NamedTuple):
    """Tokens that a draft proposed, how many of them were accepted, and the model's passes."""

    proposed: int
    accepted: int
    calls: int


@final
@dataclass(frozen=True, repr=False)
class Generation:
    """One answer. Prints as its text."""

    text: str | None  # None: the model has no tokenizer
    tokens: tuple[int, ...]
    finish_reason: str  # "stop" or "length"
    prompt: tuple[int, ...]  # what the answer follows: for an encoder-decoder, its source
    logprobs: tuple[Pick, ...] | None  # where asked for: each token's, and the best ones beside it
    seed: int  # the one that was given, or drawn
    prefix: Match  # how much of the prompt had been computed before, and why not more
    stats: Stats | None = None
    guesses: Guesses | None = None  # with a draft
    beyond_context: int = 0  # tokens that came from past the context the model was made for
    parse: Callable[[str], Any] | None = field(default=None, compare=False)  # how a ``schema`` reads the text

    @property
    def parsed(self) -> Any:
        """With a ``schema``: the answer as an object of that class, or what its JSON says. ``None`` if it was cut off.

        A class may ask for more than a JSON schema can say (a validator); then pydantic's error is raised here.
        """
        whole = self.parse is not None and self.text is not None and self.finish_reason == "stop"
        return self.parse(self.text) if whole else None  # pyright: ignore[reportOptionalCall, reportArgumentType] (both are there: asked above)

    def __str__(self) -> str:
        return text_of(self.text, self.tokens)

    def __repr__(self) -> str:
        return shown("Generation", self.text, self.tokens, f"finish_reason={self.finish_reason!r}")

    def _repr_html_(self) -> str:
        return as_html(str(self))

    def to_json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "parse"}
        values["stats"] = None if self.stats is None else asdict(self.stats)
        values["logprobs"] = None if self.logprobs is None else [asdict(pick) for pick in self.logprobs]
        values["guesses"] = None if self.guesses is None else self.guesses._asdict()
        return {**values, "prefix": self.prefix._asdict()}


@final
@dataclass(frozen=True)
class Piece:
    """A token of an answer as it comes. ``text`` is what became certain with it, which may be nothing."""

    prompt: int  # which prompt, which sample
    sample: int
    text: str
    pick: Pick | None
    finish_reason: str | None = None

    def __str__(self) -> str:
        return self.text


def text_of(text: str | None, tokens: Sequence[int]) -> str:
    """What an answer prints as: its text, or its tokens where there is no tokenizer."""
    return " ".join(map(str, tokens)) if text is None else text


def shown(name: str, text: str | None, tokens: Sequence[int], *more: str) -> str:
    """An answer in a line, for a prompt of Python or a list."""
    what = f"tokens={list(tokens)}" if text is None else f"text={text!r}, {len(tokens)} tokens"
    return f"<{name}: {', '.join((what, *more))}>"


def as_html(text: str) -> str:
    """A text in a notebook, with its line breaks, and wrapped."""
    return f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
