"""One answer of a conversation, as events: each token with its distribution, its attention, the cache and the cost."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from pydantic_core import to_json
from torch import Tensor

from vantage.errors import BadInput
from vantage.generation import Detokeniser, Pick, Picker, Sampling
from vantage.generation.conversation import ContextFull, PastTurn
from vantage.generation.decode import DecodeLoop
from vantage.inspect.select import labels
from vantage.model import Model
from vantage.serve.errors import bad
from vantage.serve.logprobs import MIN_LOGPROB
from vantage.serve.studio.chat.answers import EVENTS
from vantage.serve.studio.chat.conversations import Conversations, StudioConversation
from vantage.serve.studio.chat.images import SentMessage, image_places
from vantage.serve.studio.chat.transcripts import StudioTurn
from vantage.serve.studio.chat.watch import AttentionWatch, ProjectionCounter, cache_report

CHUNK = 128  # prompt tokens between two looks whether the reader is still there
TOP_TOKENS = 12  # tokens of the distribution beside each token

Event = tuple[str, bytes]  # its name, and what it carries as JSON: the fields of its model in answers.py


def likely(model: Model, sampling: Sampling, logits_V: Tensor, count: int) -> list[dict[str, Any]]:
    """The likeliest tokens: the model's own probability, and the one after temperature and filters."""
    raw = torch.softmax(logits_V.double(), -1)
    sampled = Picker(sampling, (), vocab=len(logits_V)).distribution(logits_V)
    best = raw.topk(min(count, len(raw))).indices.tolist()
    texts = labels(model, best)
    return [
        {"id": id, "text": text, "p_raw": float(raw[id]), "p_sampled": float(sampled[id])}
        for id, text in zip(best, texts, strict=True)
    ]


def event(name: str, fields: dict[str, Any]) -> Event:
    return name, to_json(EVENTS[name].model_validate(fields), inf_nan_mode="null")


@final
@dataclass(frozen=True)
class BegunToken:
    """A token that an answer begins with: taken over from another one, or forced. ``watched``: what is known of it."""

    id: int
    logprob: float
    watched: dict[str, Any]


@final
@dataclass(eq=False)
class WatchedAnswer:
    """One answer on its way, in the worker thread of its model.

    ``layer``: whose attention is watched; "mean": of all. ``beginning``: what the answer begins with. ``stopping``: set
    by others, to end it after its present token.
    """

    conversations: Conversations
    talk: StudioConversation
    message: SentMessage
    sampling: Sampling
    most: int
    layer: int | str | None
    stopping: threading.Event
    beginning: tuple[BegunToken, ...] = ()
    loop: DecodeLoop | None = None
    written: list[bytes] = field(default_factory=list)

    @torch.inference_mode()
    def run(self) -> Generator[Event]:
        """Everything from the prompt to the end. Whoever closes this early keeps what was said."""
        began, first_ms = time.perf_counter(), 0.0
        model = self.talk.conversation.model
        watch = (
            None if self.layer is None else AttentionWatch(model, self.layer if isinstance(self.layer, int) else None)
        )
        cost: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: self._keep(cost))  # the last of all: after the conversation has taken the answer in
            loop = self.loop = self._begin(stack)
            counter = ProjectionCounter(loop.row)
            cost |= {**counter.counts(), "ms_total": 0.0, "ms_first": 0.0}
            self.talk.cache = cache_report(loop.row, loop.reused)
            self.conversations.put(self.talk)
            yield event("start", self._start(loop, counter))
            total = loop.unread
            for done in loop.read(CHUNK):  # natively, since nobody watches these
                counter.count()
                yield event("prompt", {"done": done, "total": total})
                if self.stopping.is_set():
                    break
            for name, fields in self._tokens(loop, watch, counter):
                first_ms = first_ms or 1e3 * (time.perf_counter() - began)
                total_ms = 1e3 * (time.perf_counter() - began)
                cost |= {**counter.counts(), "ms_total": round(total_ms, 3), "ms_first": round(first_ms, 3)}
                self.written.append(fields)
                yield name, fields
        yield event("done", self._done(loop, cost))

    def _tokens(self, loop: DecodeLoop, watch: AttentionWatch | None, counter: ProjectionCounter) -> Iterator[Event]:
        yield from self._begun(loop)
        if not self.stopping.is_set():
            yield from self._write(loop, watch, counter)

    def _begun(self, loop: DecodeLoop) -> Iterator[Event]:
        """The tokens that the answer begins with, as if they were written now."""
        model = loop.row.model
        assert model.tokenizer is not None
        text = Detokeniser(model.tokenizer)
        for number, token in enumerate(self.beginning):
            fields = {
                "top": [],
                "attention": [],
                "cache": self.talk.cache,
                "cost": {"projections_cached": 0, "projections_uncached": 0},
                "ms": 0.0,
                **token.watched,
                "index": len(loop.prompt) + number,
                "id": token.id,
                "text": text.push(token.id),
                "token": labels(model, [token.id])[0],
                "logprob": token.logprob,
            }
            yield event("token", fields)

    def _begin(self, stack: contextlib.ExitStack) -> DecodeLoop:
        answering = self.talk.conversation.answering(
            self.message.text,
            images=self.message.images,
            sampling=self.sampling,
            max_tokens=self.most + len(self.beginning),
            beginning=[Pick(token.id, token.logprob) for token in self.beginning],
        )
        try:
            return stack.enter_context(answering)
        except ContextFull as e:
            raise bad(
                f"this conversation has {e.tokens:,} tokens with the new message, and the model's context is "
                f"{e.limit:,}: shorten the message, branch from an earlier turn, or start a new conversation",
                "message",
                "context_length_exceeded",
            ) from e
        except BadInput as e:
            raise bad(str(e), "message") from e

    def _write(self, loop: DecodeLoop, watch: AttentionWatch | None, counter: ProjectionCounter) -> Iterator[Event]:
        model, steps = loop.row.model, loop.run()
        while True:
            began = time.perf_counter()
            with contextlib.nullcontext() if watch is None else watch.on():
                step = next(steps, None)
            if step is None:
                return
            counter.passed()
            (pick,), (logits,) = step.picks, step.logits_nV
            index = len(loop.prompt) + len(loop.picks) - 1
            self.conversations.keep_logits(self.talk.id, index, logits.clone())
            token: dict[str, Any] = {
                "index": index,
                "id": pick.token,
                "text": step.text,
                "token": labels(model, [pick.token])[0],
                "logprob": pick.logprob if math.isfinite(pick.logprob) else MIN_LOGPROB,
                "top": likely(model, loop.picker.sampling, logits, TOP_TOKENS),
                "attention": [] if watch is None else watch.take(self._image_places(loop)),
                "slowed": None if watch is None else watch.slowed,
                "cache": cache_report(loop.row, loop.reused),
                "cost": counter.counts(),
            }
            yield event("token", {**token, "ms": round(1e3 * (time.perf_counter() - began), 3)})
            if self.stopping.is_set():
                return

    def _keep(self, cost: dict[str, Any]) -> None:
        """The answer, whole or broken off, is a turn. What was stopped before its first token did not happen."""
        loop = self.loop
        if loop is None:
            return
        if loop.picks:
            tokens = (*loop.prompt, *(pick.token for pick in loop.picks))
            past = PastTurn(
                self.message.text, loop.text, tokens, len(loop.prompt), loop.ending.ended_by, loop.intact,
                starts=() if loop.images is None else loop.images.starts,
            )  # fmt: skip
            seed, written, images = loop.picker.seed, tuple(self.written), self.message.urls
            self.talk.take(StudioTurn(past, self.talk.id, seed, loop.reused, dict(cost), written, images))
        self.talk.cache = cache_report(loop.row, loop.reused)
        self.conversations.put(self.talk)

    def _image_places(self, loop: DecodeLoop) -> list[dict[str, Any]]:
        return [] if loop.images is None else image_places(loop.prompt, loop.images.starts)

    def _start(self, loop: DecodeLoop, counter: ProjectionCounter) -> dict[str, Any]:
        return {
            "conversation": self.talk.id,
            "turn": len(self.talk.turns),
            "message": self.message.text,
            "images": self.message.urls,
            "seed": loop.picker.seed,
            "prompt_tokens": len(loop.prompt),
            "reused_tokens": loop.reused,
            "tokens": labels(loop.row.model, loop.prompt),
            "image_places": self._image_places(loop),
            "cache": cache_report(loop.row, loop.reused),
            "cost": counter.counts(),
        }

    def _done(self, loop: DecodeLoop, cost: dict[str, Any]) -> dict[str, Any]:
        usage = {
            "prompt_tokens": len(loop.prompt),
            "completion_tokens": len(loop.picks),
            "total_tokens": len(loop.prompt) + len(loop.picks),
            "reused_tokens": loop.reused,
        }
        finish = loop.ending.finish or "stopped"
        return {
            "finish": finish,
            "turns": len(self.talk.turns),
            "usage": usage,
            "cost": cost,
            "text": loop.text,
        }
