"""Conversations that keep their keys and values: a new turn computes its new tokens, and says how many those were."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from vantage.cache import CacheKind, ModelCache
from vantage.errors import BadInput, Refused
from vantage.generation.cached_sequence import CachedSequence, new_cache
from vantage.generation.chat_format import ChatFormat, Message, TemplateFormat, TokenisedText
from vantage.generation.decode import Answer, DecodeLoop
from vantage.generation.images import PromptImages, go_on, prepared, taken_out
from vantage.generation.prompts import check_model, end_tokens, user_message
from vantage.generation.sampling import Constraint, Pick, Picker, Sampling
from vantage.generation.saved_conversation import ConversationFile
from vantage.generation.speculate import Draft, check_draft
from vantage.generation.stops import AnswerText, Stop
from vantage.model import Model
from vantage.spec.images import PreparedImage


class ContextFull(BadInput):
    """A conversation that has no room for an answer."""

    def __init__(self, tokens: int, limit: int):
        super().__init__(
            f"this conversation has {tokens} tokens, and the model was made for {limit}: reset it, or edit messages"
        )
        self.tokens, self.limit = tokens, limit


class _Past(NamedTuple):
    """A conversation after a turn."""

    messages: list[Message]
    fronts: tuple[TokenisedText, ...]


@final
@dataclass(frozen=True)
class PastTurn:
    """A message and its answer, as another process may have kept them: enough to go on with the same tokens.

    ``tokens``: all of the conversation, up to the end of the answer; ``prompt``: how many of them came before it.
    ``ended_by``: "stop token", "stop string", "length", or ``None``: broken off. ``intact``: the tokens are the text's.
    ``images``: the message's own; ``starts``: where each image of the conversation so far begins in ``tokens``.
    """

    message: str
    text: str
    tokens: tuple[int, ...]
    prompt: int
    ended_by: str | None
    intact: bool = True
    images: tuple[PreparedImage, ...] = ()
    starts: tuple[int, ...] = ()

    @property
    def finish_reason(self) -> str:
        return {None: "stopped", "length": "length"}.get(self.ended_by, "stop")


_UNKNOWN = "\0"  # in no text that a template writes: what ends so is never gone on from


@final
class Conversation:
    """A chat with a model that keeps its key/value cache between turns.

    Each turn renders the whole conversation, and the cached beginning of it is reused. So messages may be edited
    (``messages``), and templates may rewrite history: only what follows the first change is computed again. ``format``:
    by default the model's chat template with ``variables``.
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        kind: str | CacheKind = "contiguous",
        sampling: Sampling = Sampling(),
        stop: Stop | str | int | Sequence[str | int] | None = None,
        max_tokens: int = 512,
        draft: Draft | None = None,
        variables: Mapping[str, Any] | None = None,
        format: ChatFormat | None = None,
    ):
        check_model(model)
        if model.tokenizer is None:
            raise BadInput("a conversation needs a tokenizer: load a model that has one")
        if system is not None and not isinstance(system, str):
            raise BadInput(f"system={system!r:.80}: give a text")
        if draft is not None:
            check_draft(draft)
        if model.encoder is not None:
            raise BadInput("an encoder-decoder cannot converse: use vt.generate with a source")
        self.model, self.sampling, self.draft = model, sampling, draft
        self.format = TemplateFormat(model.tokenizer, variables) if format is None else format
        self.stops = Stop.of(stop).also(end_tokens(model))
        self.max_tokens = max_tokens
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.turns: list[Answer] = []
        self._row = CachedSequence(model, new_cache(model, kind, 0 if draft is None else draft.tokens))
        self._pasts = [_Past(list(self.messages), ())]  # before the first turn, and after each
        self._fronts: tuple[TokenisedText, ...] = ()  # of the last answer, the longest first
        self._stopping = False

    def __repr__(self) -> str:
        turns = len(self.turns)
        return f"<Conversation: {turns} turn{'s' * (turns != 1)}, {len(self.tokens):,} tokens held>"

    # ---- talking

    def ask(
        self,
        text: str,
        *,
        role: str = "user",
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
        images: Sequence[Any] = (),
    ) -> Answer:
        """Say something and wait for the whole answer. Its ``images`` stand before its text."""
        for _ in self.stream(
            text, role=role, max_tokens=max_tokens, sampling=sampling, constraint=constraint, images=images
        ):
            pass
        return self.turns[-1]

    @torch.inference_mode()
    def stream(
        self,
        text: str,
        *,
        role: str = "user",
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
        images: Sequence[Any] = (),
    ) -> Iterator[str]:
        """Say something; the answer in pieces, as it comes.

        Whoever stops early (``stop()``, Ctrl-C, leaving the loop) keeps what was said so far. What was
        stopped before its first token did not happen.
        """
        with self.answering(
            text, role=role, max_tokens=max_tokens, sampling=sampling, constraint=constraint, images=images
        ) as loop:
            for step in loop.run():
                if step.text:
                    yield step.text
                if self._stopping:
                    break
            shown = len(loop.text)
        if rest := loop.text[shown:]:
            yield rest

    @contextlib.contextmanager
    def answering(
        self,
        text: str,
        *,
        role: str = "user",
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
        beginning: Sequence[Pick] = (),
        images: Sequence[Any] = (),
    ) -> Iterator[DecodeLoop]:
        """Say something, and run the decode loop oneself. Whatever came of it is taken in at the end.

        ``beginning``: tokens that the answer begins with.
        """
        begun = time.perf_counter()
        if not isinstance(text, str):
            raise BadInput(f"a message {text!r:.80}: give a text")
        messages = [*self.messages, user_message(text, prepared(self.model, images), role)]
        rendered, tokens, placed = self._prompt(messages)
        most = self._room(len(tokens), self.max_tokens if max_tokens is None else max_tokens)
        picker = Picker(
            sampling or self.sampling,
            tokens,
            vocab=self.model.spec.vocab,
            sample=sum(message["role"] == role for message in self.messages),  # other random numbers each turn
            constraint=constraint,
        )
        ending = AnswerText(self.stops, self.model.tokenizer, max_tokens=most, constraint=constraint)
        loop = DecodeLoop(
            self._row, tokens, picker, ending, self.draft, begun=begun, beginning=beginning, images=placed
        )
        self._stopping = False
        try:
            yield loop
        finally:
            self._keep(loop, messages, rendered)

    def _keep(self, loop: DecodeLoop, messages: list[Message], rendered: str) -> None:
        """Take in an answer, whole or broken off."""
        tokens = [*loop.prompt, *(pick.token for pick in loop.picks)]
        self._row.settle(tokens[:-1])  # after an interrupt anywhere; and nobody has asked yet what follows the last
        loop.flush()
        if not loop.picks:
            return
        front = TokenisedText(tokens, rendered + self.format.quote(loop.text), loop.images)
        self._take_in(messages, front, loop.answer(), loop.ending.ended_by, loop.intact)

    def _take_in(
        self, messages: list[Message], front: TokenisedText, answer: Answer, ended_by: str | None, intact: bool
    ) -> None:
        if not intact or ended_by == "stop string":  # its tokens stand for no known text
            self._fronts = (front._replace(text=front.text + _UNKNOWN),)
        elif ended_by == "stop token":  # it stands for itself, unless the template ends an answer otherwise
            end = self.model.tokenizer.decode(front.tokens[-1:], special=True)
            self._fronts = (front._replace(text=front.text + end), front._replace(tokens=front.tokens[:-1]))
        else:
            self._fronts = (front,)
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        self.turns.append(answer)
        self._pasts.append(_Past(list(self.messages), self._fronts))

    def recall(self, turns: Sequence[PastTurn]) -> None:
        """Take in turns that were said in another process. Nothing is computed: the next message pays for all of it."""
        vocab = self.model.spec.vocab
        for past in turns:
            tokens = list(past.tokens)
            if not 0 < past.prompt < len(tokens) or not all(0 <= token < vocab for token in tokens):
                raise BadInput("this conversation's tokens are none of this model's: start a new one")
            messages = [*self.messages, user_message(past.message, past.images)]
            images = taken_out(messages)[1]
            placed = PromptImages.at(self.model, tokens[: past.prompt], images, past.starts)
            picks = tuple(Pick(token, math.nan) for token in tokens[past.prompt :])
            answer = Answer(past.text, past.finish_reason, picks, 0, past.prompt, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
            written = self.format.render(taken_out(messages)[0]) + self.format.quote(past.text)
            self._take_in(messages, TokenisedText(tokens, written, placed), answer, past.ended_by, past.intact)

    def stop(self) -> None:
        """End the answer that is under way after its present token. For signal handlers and other threads."""
        self._stopping = True

    def _prompt(self, messages: Sequence[Message]) -> tuple[str, list[int], PromptImages | None]:
        """The conversation as text and as tokens, and where its images stand.

        An answer may not be what its text would be tokenised to, and may not even be text (half a
        character). Where the format writes on from it, its tokens stay as they are.
        """
        plain, images = taken_out(messages)
        text = self.format.render(plain)
        for front in self._fronts:
            if front.begins(text, images):
                more = self.format.encode(text[len(front.text) :], first=False)
                return text, *go_on(self.model, front.tokens, front.images, more, images)
        return text, *go_on(self.model, (), None, self.format.encode(text, first=True), images)

    def _room(self, prompt: int, most: int) -> int:
        limit = self.model.context_length
        if limit is not None and prompt >= limit:
            raise ContextFull(prompt, limit)
        if prompt < 1:
            raise BadInput("the message is empty: write something")
        if most < 1:
            raise BadInput(f"max_tokens={most}: give at least 1")
        return most if limit is None else min(most, limit - prompt)

    # ---- what is held

    @property
    def cache(self) -> ModelCache:
        """What the conversation holds: ``cache.holds()`` shows it, ``cache.bytes`` weighs it."""
        return self._row.cache

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose keys and values are held."""
        return tuple(self._row.tokens)

    def reset(self) -> None:
        """Forget all but the system message. Its keys stay, as far as the next turn begins alike."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self.turns = []
        self._pasts = [_Past(list(self.messages), ())]

    def branch(self, turn: int | None = None) -> Conversation:
        """An independent conversation that has come the same way, all of it or up to this turn."""
        other = Conversation.__new__(Conversation)
        other.__dict__.update(self.__dict__)
        other._row = self._row.fork()
        other.messages, other.turns, other._pasts = list(self.messages), list(self.turns), list(self._pasts)
        if turn is not None:
            if not 0 <= turn <= len(self.turns):
                raise BadInput(
                    f"turn {turn}: this conversation has {len(self.turns)}, and can be branched at 0 to that"
                )
            other.turns, other._pasts = other.turns[:turn], other._pasts[: turn + 1]
            messages, other._fronts = other._pasts[-1]
            other.messages = list(messages)
        return other

    # ---- files

    def save(self, path: str | Path) -> None:
        """Write the messages and the cache to a file that another process can go on from."""
        if taken_out(self.messages)[1]:
            raise Refused("a conversation with images cannot be saved with its cache: keep the messages instead")
        last = self._fronts[0] if self._fronts else TokenisedText([], "")
        ConversationFile(self.messages, self._row.tokens, last).write(path, self._row.cache, self.model)

    @staticmethod
    def load(
        path: str | Path,
        model: Model,
        *,
        sampling: Sampling = Sampling(),
        stop: Stop | str | int | Sequence[str | int] | None = None,
        max_tokens: int = 512,
        draft: Draft | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Conversation:
        """Go on with a saved conversation. Another model than it was saved with is refused."""
        loaded = Conversation(
            model, sampling=sampling, stop=stop, max_tokens=max_tokens, draft=draft, variables=variables
        )
        saved, cache = ConversationFile.read(path, model)
        loaded.messages, loaded._fronts = saved.messages, (saved.last,) if saved.last.text else ()
        loaded._pasts = [_Past(list(saved.messages), loaded._fronts)]
        loaded._row = CachedSequence(model, cache, saved.tokens)
        return loaded
