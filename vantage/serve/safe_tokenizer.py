"""Texts of strangers to tokens: what they spell stays text.

``<|im_end|>`` inside a message must not end the message. So a mark that nobody can guess is put into
every spelling of a special token before the chat template sees it. The template's own special tokens
have none. Then the text is cut at the marks and the pieces are encoded: no piece has a whole spelling
but those that the template wrote. A text without spellings is encoded as ever.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, final

from tokenizers import Encoding

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.serve.errors import bad

OWN_PARTS = (
    ("type", "text"),
    ("type", "image"),
)  # of parts of a message: ours, and a template asks for these very words


@final
class SafeTokenizer:
    """``tokenizer`` for texts that are not trusted."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self._backend = tokenizer, tokenizer.backend
        template = tokenizer.template or ""
        added = self._backend.get_added_tokens_decoder()
        # a token that is not called special but that the template writes (<tool_call>) is one to us;
        # others (runs of blanks) are text
        special = {i: t for i, t in added.items() if t.special or (t.content.strip() and t.content in template)}
        self.special = frozenset(special)  # tokens that no text becomes
        self._spellings = sorted({t.content for t in special.values() if t.content}, key=len, reverse=True)
        every = "|".join(re.escape(spelling) for spelling in self._spellings)
        self._find = re.compile(f"(?=({every}))") if every else None  # looks ahead: spellings may overlap
        # one character cannot be cut, and what is normalised first may become a spelling only then
        folds = self._backend.normalizer is not None and any(t.normalized for t in special.values())
        self._doubtful = folds or any(len(spelling) < 2 for spelling in self._spellings)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """``special``: with the tokens that the model wants around every text."""
        mark = new_mark()
        return self.encode_marked(self.marked(text, mark), mark, special=special)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """A conversation as the model was trained to read it."""
        mark = new_mark()
        return self.encode_rendered(self.render_chat(messages, tools, mark=mark), mark)

    # ---- with a mark of the caller's, so that texts of several calls can be compared

    def marked(self, text: str, mark: str) -> str:
        """A text with the mark inside every spelling of a special token."""
        return self._cut(text, mark, edges=False)

    def encode_marked(self, text: str, mark: str, *, special: bool) -> list[int]:
        """The tokens of a marked text, none of them special but those around it."""
        pieces = text.split(mark)
        encoding = self._encoded(pieces)
        if self._doubtful or len(pieces) > 1:
            self._sound(encoding.ids)
        return self._backend.post_process(encoding, add_special_tokens=True).ids if special else encoding.ids

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, *, mark: str
    ) -> str:
        """A conversation in the model's template, with marks; the template's own special tokens have none."""
        text = self._rendered(messages, tools, mark, edges=False)
        if self._at_an_edge(messages) or self._at_an_edge(tools or ()):
            # two harmless halves may meet where the template puts texts side by side
            careful = self._rendered(messages, tools, mark, edges=True)
            if self._count(careful) != self._count(text):
                text = careful
        if self._doubtful:
            for part in (*_texts(messages), *_texts(tools or ())):
                self._sound(self._encoded(self.marked(part, mark).split(mark)).ids)
        return text

    def encode_rendered(self, text: str, mark: str) -> list[int]:
        """The tokens of what ``render_chat`` wrote, or of a part of it."""
        return self._encoded(text.split(mark)).ids

    # ---- inside

    def _rendered(self, messages: Any, tools: Any, mark: str, *, edges: bool) -> str:
        def marked(value: Any) -> Any:
            if isinstance(value, str):
                return self._cut(value, mark, edges=edges)
            if isinstance(value, Mapping):
                return {marked(k): v if k == "role" or (k, v) in OWN_PARTS else marked(v) for k, v in value.items()}
            return [marked(one) for one in value] if isinstance(value, (list, tuple)) else value

        return self.tokenizer.chat(marked(list(messages)), tools=marked(list(tools)) if tools else None)

    def _cut(self, text: str, mark: str, *, edges: bool) -> str:
        """With a mark inside every spelling; ``edges``: and inside what a neighbour could complete."""
        if self._find is None:
            return text
        at = {match.start() + 1 for match in self._find.finditer(text)}
        at |= self._edges(text) if edges else set()
        cuts = [0, *sorted(at), len(text)]
        return mark.join(text[a:b] for a, b in itertools.pairwise(cuts)) if at else text

    def _edges(self, text: str) -> set[int]:
        at: set[int] = set()
        for spelling in self._spellings:
            for k in range(1, len(spelling)):
                if text.endswith(spelling[:k]):
                    at.add(len(text) - k + 1)
                if text.startswith(spelling[-k:]):
                    at.add(k - 1)
        return at

    def _at_an_edge(self, value: Any) -> bool:
        return any(self._edges(text) for text in _texts(value))

    def _count(self, text: str) -> int:
        return 0 if self._find is None else sum(1 for _ in self._find.finditer(text))

    def _encoded(self, pieces: Sequence[str]) -> Encoding:
        encodings = [self._one(piece) for piece in pieces if piece]
        if len(encodings) > 1:
            return Encoding.merge(encodings, growing_offsets=True)
        return encodings[0] if encodings else self._one("")

    def _one(self, text: str) -> Encoding:
        try:
            return self._backend.encode(text, add_special_tokens=False)
        except Exception as e:  # it raises bare Exception
            raise bad("this text cannot be encoded with the model's vocabulary") from e

    def _sound(self, ids: Sequence[int]) -> None:
        if not self.special.isdisjoint(ids):
            raise bad("this text spells a special token in a way that cannot be written as plain text: change it")


def new_mark() -> str:
    """One that nobody can guess."""
    return f"\ue000{secrets.token_hex(12)}\ue001"


def _texts(value: Any) -> list[str]:
    """Every text in nested data; a role is none of the user's own."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [t for k, v in value.items() if k != "role" for part in (k, v) for t in _texts(part)]
    return [t for one in value for t in _texts(one)] if isinstance(value, (list, tuple)) else []


@final
class TokenTexts:
    """What single tokens say, for log-probabilities: as text, and as the bytes that the text may be half of."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    def text(self, token: int) -> str:
        return self._tokenizer.decode([token], special=True)

    def bytes(self, token: int) -> list[int]:
        return list(self._tokenizer.token_bytes(token))
