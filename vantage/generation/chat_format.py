"""How a conversation is written out as one text, and as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.generation.images import PromptImages
from vantage.spec.images import PreparedImage

Message = Mapping[str, Any]  # a role and a content: a text, or parts of text and images


class TokenisedText(NamedTuple):
    """All tokens up to the end of an answer, and the text that they stand for in what the format writes."""

    tokens: list[int]
    text: str
    images: PromptImages | None = None

    def begins(self, text: str, images: Sequence[PreparedImage]) -> bool:
        """Whether this text goes on from here. Another image may be written as the same text."""
        own = () if self.images is None else self.images.images
        same = [image.digest for image in own] == [image.digest for image in images[: len(own)]]
        return same and text.startswith(self.text) and len(text) > len(self.text)


class ChatFormat(Protocol):
    """How a conversation is written out, and what tokens that is."""

    def render(self, messages: Sequence[Message]) -> str:
        """The whole conversation, up to where the answer begins."""
        ...

    def quote(self, text: str) -> str:
        """An answer as it stands in what ``render`` writes, unless the template changes it."""
        ...

    def encode(self, rendered: str, *, first: bool) -> list[int]:
        """The tokens of such a text; ``first``: it is the beginning."""
        ...


@final
@dataclass(frozen=True)
class TemplateFormat:
    """The model's own chat template, for texts that are trusted."""

    tokenizer: Tokenizer
    variables: Mapping[str, Any] | None = None

    def render(self, messages: Sequence[Message]) -> str:
        return self.tokenizer.chat(messages, variables=self.variables)

    def quote(self, text: str) -> str:
        return text

    def encode(self, rendered: str, *, first: bool) -> list[int]:
        return self.tokenizer.encode(rendered, special=False)
