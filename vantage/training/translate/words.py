"""Words, and the pieces a vocabulary makes of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vantage.checkpoints.tokenizer import Tokenizer

# Letters and digits, hyphens inside; an apostrophe belongs to the word before it (l' herbe), except in 's; every
# other sign is a word by itself.
WORD = r"\w+(?:-\w+)*(?:['’](?!s\b))?|['’]s\b|[^\w\s]"
_WORD = re.compile(WORD)


def words(text: str) -> list[str]:
    """The words of a sentence, lower-cased: what alignments are counted in."""
    return [text[low:high].lower() for low, high in spans(text)]


def spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a sentence begin and end."""
    return [match.span() for match in _WORD.finditer(text)]


def word_of_each(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """The tokens of a sentence, and the number of the word that each belongs to."""
    encoded = tokenizer.backend.encode(text, add_special_tokens=False)
    where = spans(text)
    return encoded.ids, [_word_at(where, low, high) for low, high in encoded.offsets]


def _word_at(where: Sequence[tuple[int, int]], low: int, high: int) -> int:
    """The word that shares the most characters with low … high; for a space, the word after it."""
    shared = [min(high, b) - max(low, a) for a, b in where]
    if max(shared, default=0) > 0:
        return shared.index(max(shared))
    return next((i for i, (_, b) in enumerate(where) if b > low), len(where) - 1)
