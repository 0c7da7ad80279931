"""Conversations of the studio: few of them, each with its cache; and the logits of the last tokens."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from vantage.files import GIB
from vantage.generation import Conversation
from vantage.generation.conversation import Message
from vantage.inspect.select import labels
from vantage.model import Model
from vantage.serve.errors import ApiError, bad
from vantage.serve.safe_tokenizer import SafeTokenizer, new_mark
from vantage.serve.studio.state import Studio

CONVERSATIONS = 16
CACHE_BYTES = GIB  # of all conversations
LOGIT_BYTES = 2**26  # about 300 tokens of a vocabulary of 50,000


@final
class SafeFormat:
    """How a conversation is written out where its texts are not trusted. Without a template, as one text."""

    def __init__(self, tokenizer: SafeTokenizer):
        self._tokenizer, self._mark = tokenizer, new_mark()
        self._templated = tokenizer.tokenizer.template is not None

    def render(self, messages: Sequence[Message]) -> str:
        if self._templated:
            return self._tokenizer.render_chat(messages, mark=self._mark)
        return "".join(self.quote(message["content"]) for message in messages if message["role"] != "system")

    def quote(self, text: str) -> str:
        return self._tokenizer.marked(text, self._mark)

    def encode(self, rendered: str, *, first: bool) -> list[int]:
        if self._templated:
            return self._tokenizer.encode_rendered(rendered, self._mark)
        return self._tokenizer.encode_marked(rendered, self._mark, special=first)


@final
@dataclass(frozen=True)
class StudioTurn:
    tokens: tuple[int, ...]  # all of the conversation, up to the end of the answer
    origin: str  # the conversation in which it was said


@final
@dataclass(eq=False)
class StudioConversation:
    """One conversation. Only the worker thread of its model changes it."""

    model: str
    system: str | None
    conversation: Conversation
    turns: tuple[StudioTurn, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    page_state: dict[str, Any] = field(default_factory=dict)  # what a reader is shown; replaced as a whole

    @staticmethod
    def new(name: str, model: Model, tokenizer: SafeTokenizer, system: str | None) -> StudioConversation:
        return StudioConversation(name, system, Conversation(model, system=system, format=SafeFormat(tokenizer)))

    def branch(self, turn: int) -> StudioConversation:
        """Another conversation that has come the same way up to this turn, with a fork of the cache."""
        turns = len(self.turns)
        if turn > turns:
            raise bad(f"turn {turn}: this conversation has {turns}, and can be branched at 0 to that", "turn")
        with torch.inference_mode():
            branched = self.conversation.branch(turn)
        return StudioConversation(self.model, self.system, branched, self.turns[:turn])

    def take(self, tokens: Sequence[int]) -> None:
        """A turn has come to its end; ``tokens``: all up to there."""
        self.turns = (*self.turns, StudioTurn(tuple(tokens), self.id))

    def show(self, cache: dict[str, Any]) -> None:
        """Put what there is where readers find it."""
        turns, conversation = [], self.conversation
        messages = [message for message in conversation.messages if message["role"] == "user"]
        for number, turn in enumerate(self.turns):
            answer = conversation.turns[number]
            place = {"turn": number, "parent": None if turn.origin == self.id else turn.origin}
            turns.append({"role": "user", "text": messages[number]["content"], **place})
            turns.append({"role": "assistant", "text": answer.text, **place, "finish": answer.finish_reason})
        self.page_state = {
            "conversation": self.id,
            "model": self.model,
            "system": self.system,
            "turns": turns,
            "tokens": labels(conversation.model, list(self.turns[-1].tokens) if self.turns else []),
            "cache": cache,
        }


@final
class Conversations:
    """The conversations, the least recently used given up first. Used by several threads."""

    def __init__(self, studio: Studio):
        self._lock = threading.Lock()
        self._conversations: OrderedDict[str, StudioConversation] = OrderedDict()
        self._logits: OrderedDict[tuple[str, int], Tensor] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._conversations)

    def get(self, id: str) -> StudioConversation:
        with self._lock:
            conversation = self._conversations.get(id)
            if conversation is None:
                raise ApiError(
                    404,
                    "conversation_not_found",
                    f"this conversation is not here any more: the last {CONVERSATIONS} are kept. Start a new one",
                    param="conversation",
                )
            self._conversations.move_to_end(id)
            return conversation

    def put(self, conversation: StudioConversation) -> None:
        with self._lock:
            kept = self._conversations
            kept[conversation.id] = conversation
            kept.move_to_end(conversation.id)
            while len(kept) > 1 and (
                len(kept) > CONVERSATIONS or sum(c.conversation.cache.bytes for c in kept.values()) > CACHE_BYTES
            ):
                self._forget(next(iter(kept)))

    def drop(self, id: str) -> None:
        self.get(id)
        with self._lock:
            self._forget(id)

    def _forget(self, id: str) -> None:
        self._conversations.pop(id, None)
        for key in [key for key in self._logits if key[0] == id]:
            self._bytes -= self._logits.pop(key).nbytes

    # ---- logits

    def keep_logits(self, id: str, index: int, logits_V: Tensor) -> None:
        with self._lock:
            old = self._logits.pop((id, index), None)
            self._bytes -= 0 if old is None else old.nbytes
            self._logits[id, index] = logits_V
            self._bytes += logits_V.nbytes
            while self._bytes > LOGIT_BYTES:
                self._bytes -= self._logits.popitem(last=False)[1].nbytes

    def inherit_logits(self, new: str, old: str, before: int) -> None:
        """A branch knows the distributions of what it took over."""
        with self._lock:
            inherited = [(index, t) for (id, index), t in self._logits.items() if id == old and index < before]
        for index, logits in inherited:
            self.keep_logits(new, index, logits)

    def logits(self, id: str, index: int) -> Tensor:
        self.get(id)
        with self._lock:
            logits = self._logits.get((id, index))
        if logits is None:
            raise ApiError(
                404,
                "logits_not_kept",
                f"the distribution at token {index} is not kept: only those of tokens that were written of late are",
                param="index",
            )
        return logits
