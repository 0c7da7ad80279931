"""A task's symbols as a tokenizer: with it a model that was trained on the task reads and writes text."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.errors import Refused
from vantage.training.sequences import SPECIALS, Reads
from vantage.training.tasks import spaced

PAD, START, END, SEPARATOR = SPECIALS
# What stands around a prompt, as ``Sequences`` writes it. A source is the prompt alone.
AROUND: dict[Reads, str] = {
    "line": f"{START} $A {SEPARATOR}",
    "ask": f"{START} $A {SEPARATOR}",
    "label": f"{START} $A",
}
# In a chat every message is a prompt of its own: a task knows no earlier ones.
CHAT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('a model of a task takes no system message') }}"
    "{% endif %}{{ bos_token }}{{ messages[-1]['content'] }}" + SEPARATOR
)


def task_tokenizer(symbols: Sequence[str], reads: Reads) -> Tokenizer:
    """The tokenizer of a task, for a model that reads its examples in this way. A text is written as ``words`` does.

    Between symbols that need no space, spaces may stand all the same, unless one of the symbols is blank.
    """
    if (why := why_no_text(symbols)) is not None:
        raise Refused(f"the task's symbols make no tokenizer: {why}")
    backend = Backend(models.WordLevel(vocab={name: i for i, name in enumerate((*SPECIALS, *symbols))}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_pattern(symbols)), "removed", invert=True)
    if not spaced(symbols):  # otherwise tokens are joined by spaces
        backend.decoder = decoders.Fuse()
    backend.add_special_tokens([PAD, START, END])
    backend.add_tokens([AddedToken(SEPARATOR, normalized=False)])  # not special: an answer that has it shows it
    if reads in AROUND:
        ids = [(name, SPECIALS.index(name)) for name in (START, SEPARATOR) if name in AROUND[reads]]
        backend.post_processor = processors.TemplateProcessing(single=AROUND[reads], special_tokens=ids)
    about = About(START, END, CHAT if reads == "line" else None)
    return Tokenizer(functools.partial(Backend.from_str, backend.to_str()), about)


def why_no_text(symbols: Sequence[str]) -> str | None:
    """What stands in the way of writing these symbols as text and reading them back; ``None``: nothing."""
    if wrong := [symbol for symbol in symbols if not isinstance(symbol, str) or not symbol]:
        return f"{wrong[0]!r} is no text"
    if len(set(symbols)) < len(symbols):
        twice = next(symbol for i, symbol in enumerate(symbols) if symbol in symbols[:i])
        return f"{twice!r} is there twice"
    if taken := [symbol for symbol in symbols if symbol in SPECIALS]:
        return f"{taken[0]!r} has another meaning ({' '.join(SPECIALS)})"
    if spaced(symbols) and (blank := [symbol for symbol in symbols if symbol != symbol.strip()]):
        return f"{blank[0]!r} begins or ends with a blank, and blanks stand between the symbols of this task"
    return None


def _pattern(symbols: Sequence[str]) -> str:
    """What one symbol is in a text. What is no symbol is cut out as well, and refused by the vocabulary."""
    if spaced(symbols):
        several_words = [symbol for symbol in symbols if re.search(r"\s", symbol)]
        return "|".join([*(rf"{one}(?=\s|$)" for one in _longest_first(several_words)), r"\S+"])
    any_character = r"[\s\S]" if any(symbol.isspace() for symbol in symbols) else r"\S"
    return "|".join([*_longest_first([symbol for symbol in symbols if len(symbol) > 1]), any_character])


def _longest_first(symbols: Sequence[str]) -> list[str]:
    return [re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True)]
