"""Conversations as files: the messages, their tokens, and the cache that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from vantage.cache import ModelCache
from vantage.cache.saved import Fingerprint, fingerprint, read_cache, save_cache
from vantage.errors import CheckpointError
from vantage.generation.chat_format import Message, TokenisedText
from vantage.model import Model
from vantage.spec.fingerprint import stable_repr

FORMAT = "vantage-conversation-1"


@final
@dataclass(frozen=True)
class ConversationFile:
    """``tokens``: those whose keys and values the cache holds; ``last``: all up to the end of the last answer."""

    messages: list[Message]
    tokens: Sequence[int]
    last: TokenisedText

    def write(self, path: str | Path, cache: ModelCache, model: Model) -> None:
        extra = {
            "conversation": FORMAT,
            "messages": [dict(message) for message in self.messages],
            "tokens": list(self.tokens),
            "said": list(self.last.tokens),
            "text": self.last.text,
        }
        save_cache(cache, path, fingerprint=fingerprint_of(model), extra=extra)

    @staticmethod
    def read(path: str | Path, model: Model) -> tuple[ConversationFile, ModelCache]:
        """What was written, checked; another model than it was written with is refused."""
        file = read_cache(path, like=model.new_cache(), fingerprint=fingerprint_of(model))
        saved = _checked(path, file.extra, model.spec.vocab)
        if file.cache.batch != 1 or file.cache.tokens[0] != len(saved.tokens):
            raise CheckpointError(f"{path}: its cache does not hold its {len(saved.tokens)} tokens")
        return saved, file.cache


def _checked(path: str | Path, extra: Mapping[str, Any], vocab: int) -> ConversationFile:
    if extra.get("conversation") != FORMAT:
        raise CheckpointError(f"{path} is a saved cache without a conversation")
    messages: list[Message] = []
    saved = extra.get("messages")
    for row in saved if isinstance(saved, list) else [None]:
        if not isinstance(row, dict) or not {"role", "content"} <= row.keys():
            raise CheckpointError(f"{path}: a message without role and content")
        if not all(isinstance(text, str) for text in row.values()):
            raise CheckpointError(f"{path}: a message that is no text")
        messages.append(row)
    numbers = []
    for name in ("tokens", "said"):
        row = extra.get(name)
        if not isinstance(row, list) or not all(type(n) is int and 0 <= n < vocab for n in row):
            raise CheckpointError(f"{path}: its {name} are no tokens of this model")
        numbers.append(row)
    if not isinstance(extra.get("text"), str):
        raise CheckpointError(f"{path}: it has no text")
    return ConversationFile(messages, numbers[0], TokenisedText(numbers[1], extra["text"]))


def fingerprint_of(model: Model) -> Fingerprint:
    """Which model this is: over its spec and samples of its weights."""
    spec = model.spec
    kind = (model.config or {}).get("model_type", "model")
    name = f"{kind}, {len(spec.layers)} layers of width {spec.width}, {model.dtype}"
    return fingerprint(name.replace("torch.", ""), stable_repr(spec), model.state_dict().items())
