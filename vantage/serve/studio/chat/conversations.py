"""Conversations of the studio: all of them in files, the last ones with their caches; and logits of late."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.files import GIB
from vantage.generation import Conversation
from vantage.generation.chat_format import Message
from vantage.generation.saved_conversation import fingerprint_of
from vantage.model import Model
from vantage.serve.errors import ApiError, bad
from vantage.serve.model_pool import LoadedModel
from vantage.serve.safe_tokenizer import SafeTokenizer, new_mark
from vantage.serve.studio.chat.files import ConversationFiles
from vantage.serve.studio.chat.transcripts import (
    MAX_WATCHED_TOKENS,
    BranchOrigin,
    SavedConversation,
    StudioTurn,
    Transcript,
)
from vantage.serve.studio.state import Studio

CONVERSATIONS = 16
CACHE_BYTES = GIB  # of all conversations
LOGIT_BYTES = 2**26  # about 300 tokens of a vocabulary of 50,000
NO_CACHE: dict[str, Any] = {"layers": [], "bytes": 0}


@final
class SafeFormat:
    """How a conversation is written out where its texts are not trusted. Without a template, as one text."""

    def __init__(self, tokenizer: SafeTokenizer):
        self._tokenizer, self._mark = tokenizer, new_mark()
        self._templated = tokenizer.tokenizer.template is not None

    def render(self, messages: Sequence[Message]) -> str:
        if self._templated:
            return self._tokenizer.render_chat(messages, mark=self._mark)
        if not all(isinstance(message["content"], str) for message in messages):
            raise BadInput("this model's chat template has no place for an image: leave it out")
        return "".join(self.quote(message["content"]) for message in messages if message["role"] != "system")

    def quote(self, text: str) -> str:
        return self._tokenizer.marked(text, self._mark)

    def encode(self, rendered: str, *, first: bool) -> list[int]:
        if self._templated:
            return self._tokenizer.encode_rendered(rendered, self._mark)
        return self._tokenizer.encode_marked(rendered, self._mark, special=first)


@final
@dataclass(eq=False)
class StudioConversation:
    """One conversation with its cache. Only the worker thread of its model changes it; others read what it replaces."""

    transcript: Transcript
    conversation: Conversation
    cache: dict[str, Any] = field(default_factory=lambda: NO_CACHE)  # what a reader is shown of it
    updated: float = field(default_factory=time.time)
    deleted: bool = False

    @property
    def id(self) -> str:
        return self.transcript.id

    @property
    def turns(self) -> tuple[StudioTurn, ...]:
        return self.transcript.turns

    @staticmethod
    def new(id: str, name: str, model: Model, tokenizer: SafeTokenizer, system: str | None) -> StudioConversation:
        transcript = Transcript(id, name, digest(model), system, None)
        return StudioConversation(transcript, Conversation(model, system=system, format=SafeFormat(tokenizer)))

    @staticmethod
    def resumed(transcript: Transcript, model: Model, loaded: LoadedModel) -> StudioConversation:
        """One that was said before the model was loaded. Its next message computes all of it anew."""
        if transcript.fingerprint != digest(model):
            raise bad(
                f"{transcript.model} is another model now than the one this conversation was written with: it can be "
                "read, but not continued. Start a new one",
                "conversation",
                "other_model",
            )
        conversation = Conversation(model, system=transcript.system, format=SafeFormat(loaded.safe_tokenizer))
        try:
            conversation.recall([turn.recalled(loaded) for turn in transcript.turns])
        except BadInput as e:
            raise bad(str(e), "conversation") from e
        return StudioConversation(transcript, conversation)

    def branch(self, id: str, turn: int) -> StudioConversation:
        """Another conversation that has come the same way up to this turn, with a fork of the cache."""
        turns = len(self.turns)
        if turn > turns:
            raise bad(f"turn {turn}: this conversation has {turns}, and can be branched at 0 to that", "turn")
        with torch.inference_mode():
            branched = self.conversation.branch(turn)
        origin = BranchOrigin(conversation=self.id, turn=turn)
        transcript = replace(
            self.transcript, id=id, origin=origin, created=time.time(), turns=self.transcript.turns[:turn]
        )
        return StudioConversation(transcript, branched)

    def take(self, turn: StudioTurn) -> None:
        """A turn has come to its end. Of what was watched only the newest is kept."""
        turns, left = [turn], MAX_WATCHED_TOKENS - len(turn.written)
        for old in reversed(self.turns):
            kept = old.written[-left:] if left > 0 else ()
            left -= len(old.written)
            turns.insert(0, old if kept == old.written else replace(old, written=kept))
        self.transcript, self.updated = replace(self.transcript, turns=tuple(turns)), time.time()


_DIGESTS: weakref.WeakKeyDictionary[Model, str] = weakref.WeakKeyDictionary()


def digest(model: Model) -> str:
    """Which model this is, in a few characters. Found out once for each."""
    if model not in _DIGESTS:
        _DIGESTS[model] = fingerprint_of(model).digest
    return _DIGESTS[model]


@final
class Conversations:
    """The conversations; of those with a cache, the least recently used given up first. Used by several threads."""

    def __init__(self, studio: Studio):
        self._lock = threading.Lock()
        self._live: OrderedDict[str, StudioConversation] = OrderedDict()
        self._logits: OrderedDict[tuple[str, int], Tensor] = OrderedDict()
        self._bytes = 0
        self.files = ConversationFiles(studio.folder / "conversations")

    def __len__(self) -> int:
        return len(self._live)

    def live(self, id: str) -> StudioConversation | None:
        """One that has its cache still."""
        with self._lock:
            if id in self._live:
                self._live.move_to_end(id)
            return self._live.get(id)

    def all_live(self) -> list[StudioConversation]:
        with self._lock:
            return list(self._live.values())

    def transcript(self, id: str) -> Transcript:
        """What was said, whether its cache is still there or not."""
        live = self.live(id)
        transcript = self.files.read(id) if live is None else live.transcript
        if transcript is None:
            raise ApiError(
                404,
                "conversation_not_found",
                "this conversation no longer exists: it was deleted, or never saved. Start a new one",
                param="conversation",
            )
        return transcript

    def resume(self, id: str, model: Model, loaded: LoadedModel) -> StudioConversation:
        """A conversation to go on with, with its cache where that is still there."""
        live = self.live(id)
        if live is not None and live.conversation.model is model:
            return live
        return StudioConversation.resumed(self.transcript(id), model, loaded)

    def put(self, conversation: StudioConversation) -> None:
        if conversation.deleted:
            return
        self.files.write(conversation.transcript)
        with self._lock:
            kept = self._live
            kept[conversation.id] = conversation
            kept.move_to_end(conversation.id)
            while len(kept) > 1 and (
                len(kept) > CONVERSATIONS or sum(c.conversation.cache.bytes for c in kept.values()) > CACHE_BYTES
            ):
                self._forget(next(iter(kept)))

    def take_in(self, saved: SavedConversation) -> tuple[str, bool]:
        """A conversation of a file that was exported: its id here, and whether it is new."""
        transcript = saved.transcript
        here = self.files.read(saved.id)
        if here is not None and here.turns[: len(transcript.turns)] == transcript.turns:
            return saved.id, False
        if here is not None or self.live(saved.id) is not None:  # the same one went another way
            transcript = replace(transcript, id=secrets.token_hex(8))
        self.files.write(transcript)
        if self.files.problem or not self.files.keeping:
            why = self.files.problem or "keeping conversations is switched off"
            raise ApiError(409, "not_kept", f"{why}, so nothing can be imported", param="keeping")
        return transcript.id, True

    def drop(self, id: str) -> None:
        self.transcript(id)
        with self._lock:
            self._forget(id, deleted=True)
        self.files.remove(id)

    def clear(self) -> None:
        with self._lock:
            for id in list(self._live):
                self._forget(id, deleted=True)
        self.files.clear()

    def _forget(self, id: str, *, deleted: bool = False) -> None:
        conversation = self._live.pop(id, None)
        if conversation is not None and deleted:
            conversation.deleted = True  # its answer may still be on its way
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

    def logits(self, id: str, index: int) -> Tensor | None:
        """What a token was chosen from; ``None``: that was too long ago, or before the model was loaded."""
        if self.live(id) is None:
            self.transcript(id)  # or there is none
        with self._lock:
            return self._logits.get((id, index))
