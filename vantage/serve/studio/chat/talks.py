"""Conversations of the studio: few of them, each with its cache; and the logits of the last tokens."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from vantage.files import GIB
from vantage.generation.cached_sequence import CachedSequence, new_cache
from vantage.inspect.select import labels
from vantage.model import Model
from vantage.serve.errors import ApiError, bad
from vantage.serve.safe_tokenizer import SafeTokenizer
from vantage.serve.studio.state import Studio

CONVERSATIONS = 16
CACHE_BYTES = GIB  # of all conversations
LOGIT_BYTES = 2**26  # about 300 tokens of a vocabulary of 50,000


@final
@dataclass(frozen=True)
class Turn:
    """One message and its answer. ``prompt``: the tokens before the answer; ``plainly``: as the template alone would
    have them, where answers may be written with other tokens than were said."""

    message: str
    answer: str
    finish: str
    prompt: tuple[int, ...]
    plainly: tuple[int, ...]
    tokens: tuple[int, ...]  # of the answer, one that ends it included
    ended: bool  # the last of them is such a one
    at: str  # the conversation it was said in

    @property
    def said(self) -> tuple[int, ...]:
        """The tokens of the answer's text."""
        return self.tokens[:-1] if self.ended else self.tokens


@final
@dataclass(eq=False)
class Talk:
    """One conversation. Only the thread of its model changes it."""

    model: str
    system: str | None
    safe_tokenizer: SafeTokenizer
    row: CachedSequence
    turns: tuple[Turn, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    seen: dict[str, Any] = field(default_factory=dict)  # what a reader is shown; replaced as a whole

    @staticmethod
    def new(name: str, model: Model, safe_tokenizer: SafeTokenizer, system: str | None) -> Talk:
        return Talk(name, system, safe_tokenizer, CachedSequence(model, new_cache(model, "contiguous", 0)))

    def branch(self, turn: int) -> Talk:
        """Another conversation that has come the same way up to this turn, with a fork of the cache."""
        if turn > len(self.turns):
            raise bad(f"turn {turn}: this conversation has {len(self.turns)}, and can be branched at 0 to that", "turn")
        with torch.inference_mode():
            return Talk(self.model, self.system, self.safe_tokenizer, self.row.fork(), self.turns[:turn])

    def prompt(self, message: str) -> tuple[list[int], list[int]]:
        """All tokens before the answer to this message, and those the template alone would give.

        What was said may not be what its text would be tokenised to; then the tokens that were said stay.
        """
        if self.safe_tokenizer.tokenizer.template is None:  # no chat model: it goes on from the text
            before = [*self.turns[-1].prompt, *self.turns[-1].said] if self.turns else []
            tokens = before + self.safe_tokenizer.encode(message, special=not before)
            return tokens, tokens
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns:
            messages += [{"role": "user", "content": turn.message}, {"role": "assistant", "content": turn.answer}]
        plainly = self.safe_tokenizer.encode_chat([*messages, {"role": "user", "content": message}])
        if not self.turns:
            return plainly, plainly
        last = self.turns[-1]
        start, answer = len(last.plainly), self.safe_tokenizer.encode(last.answer, special=False)
        end = start + len(answer)
        if tuple(plainly[:start]) != last.plainly or plainly[start:end] != answer:
            return plainly, plainly  # the template rewrites what was said
        return [*last.prompt, *last.said, *plainly[end:]], plainly

    def show(self, cache: dict[str, Any]) -> None:
        """Put what there is where readers find it."""
        turns = []
        for number, turn in enumerate(self.turns):
            parent = None if turn.at == self.id else turn.at
            turns.append({"role": "user", "text": turn.message, "turn": number, "parent": parent})
            turns.append(
                {"role": "assistant", "text": turn.answer, "turn": number, "parent": parent, "finish": turn.finish}
            )
        last = self.turns[-1] if self.turns else None
        ids = [] if last is None else [*last.prompt, *last.tokens]
        self.seen = {
            "conversation": self.id,
            "model": self.model,
            "system": self.system,
            "turns": turns,
            "tokens": labels(self.row.model, ids),
            "cache": cache,
        }


@final
class Talks:
    """The conversations, the least recently used given up first. Used by several threads."""

    def __init__(self, studio: Studio):
        self._lock = threading.Lock()
        self._talks: OrderedDict[str, Talk] = OrderedDict()
        self._logits: OrderedDict[tuple[str, int], Tensor] = OrderedDict()
        self._bytes = 0

    def get(self, id: str) -> Talk:
        with self._lock:
            talk = self._talks.get(id)
            if talk is None:
                raise ApiError(
                    404,
                    "conversation_not_found",
                    f"this conversation is not here any more: the last {CONVERSATIONS} are kept. Start a new one",
                    param="conversation",
                )
            self._talks.move_to_end(id)
            return talk

    def put(self, talk: Talk) -> None:
        with self._lock:
            self._talks[talk.id] = talk
            self._talks.move_to_end(talk.id)
            while len(self._talks) > 1 and (
                len(self._talks) > CONVERSATIONS or sum(t.row.cache.bytes for t in self._talks.values()) > CACHE_BYTES
            ):
                self._forget(next(iter(self._talks)))

    def drop(self, id: str) -> None:
        self.get(id)
        with self._lock:
            self._forget(id)

    def _forget(self, id: str) -> None:
        self._talks.pop(id, None)
        for key in [key for key in self._logits if key[0] == id]:
            self._bytes -= self._logits.pop(key).nbytes

    # ---- logits

    def keep(self, id: str, index: int, logits_V: Tensor) -> None:
        with self._lock:
            old = self._logits.pop((id, index), None)
            self._bytes -= 0 if old is None else old.nbytes
            self._logits[id, index] = logits_V
            self._bytes += logits_V.nbytes
            while self._bytes > LOGIT_BYTES:
                self._bytes -= self._logits.popitem(last=False)[1].nbytes

    def inherit(self, new: str, old: str, before: int) -> None:
        """A branch knows the distributions of what it took over."""
        with self._lock:
            taken = [(index, t) for (id, index), t in self._logits.items() if id == old and index < before]
        for index, logits in taken:
            self.keep(new, index, logits)

    def logits(self, id: str, index: int) -> Tensor:
        self.get(id)
        with self._lock:
            found = self._logits.get((id, index))
        if found is None:
            raise ApiError(
                404,
                "logits_not_kept",
                f"the distribution at token {index} is not kept: only those of tokens that were written of late are",
                param="index",
            )
        return found
