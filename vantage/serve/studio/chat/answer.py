"""One answer of a conversation, as events: each token with its distribution, its attention, the cache and the cost."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.generation import Sampling
from vantage.generation.conversation import ContextFull
from vantage.generation.decode import DecodeLoop
from vantage.generation.sampling import Picker
from vantage.inspect.select import labels
from vantage.model import Model
from vantage.serve.errors import bad
from vantage.serve.logprobs import LEAST
from vantage.serve.studio.chat.conversations import Conversations, StudioConversation
from vantage.serve.studio.chat.watch import AttentionWatch, ProjectionCounter, cache_report

CHUNK = 128  # prompt tokens between two looks whether the reader is still there
LIKELY = 12  # tokens of the distribution beside each token

Event = tuple[str, dict[str, Any]]  # its name, and the fields of its model in answers.py


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


@final
@dataclass(eq=False)
class WatchedAnswer:
    """One answer on its way, in the worker thread of its model.

    ``layer``: whose attention is watched; "mean": of all.
    """

    conversations: Conversations
    talk: StudioConversation
    message: str
    sampling: Sampling
    most: int
    layer: int | str | None
    loop: DecodeLoop | None = None

    @torch.inference_mode()
    def run(self) -> Generator[Event]:
        """Everything from the prompt to the end. Whoever closes this early keeps what was said."""
        began, first_ms = time.perf_counter(), 0.0
        model = self.talk.conversation.model
        watch = (
            None if self.layer is None else AttentionWatch(model, self.layer if isinstance(self.layer, int) else None)
        )
        with contextlib.ExitStack() as stack:
            stack.callback(self._keep)  # the last of all: after the conversation has taken the answer in
            loop = self.loop = self._begin(stack)
            counter = ProjectionCounter(loop.row)
            self._show(loop)
            yield "start", self._start(loop, counter)
            total = len(loop.prompt) - 1 - len(loop.row.tokens)
            for done in loop.read(CHUNK):  # natively, since nobody watches these
                counter.count()
                yield "prompt", {"done": done, "total": total}
            for event in self._write(loop, watch, counter):
                first_ms = first_ms or 1e3 * (time.perf_counter() - began)
                yield event
        times = {"ms_total": round(1e3 * (time.perf_counter() - began), 3), "ms_first": round(first_ms, 3)}
        yield "done", self._done(loop, {**counter.counts(), **times})

    def _begin(self, stack: contextlib.ExitStack) -> DecodeLoop:
        answering = self.talk.conversation.answering(self.message, sampling=self.sampling, max_tokens=self.most)
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
                "logprob": pick.logprob if math.isfinite(pick.logprob) else LEAST,
                "top": likely(model, loop.picker.sampling, logits, LIKELY),
                "attention": [] if watch is None else watch.take(),
                "cache": cache_report(loop.row, loop.reused),
                "cost": counter.counts(),
            }
            yield "token", {**token, "ms": round(1e3 * (time.perf_counter() - began), 3)}

    def _keep(self) -> None:
        """The answer, whole or broken off, is a turn. What was stopped before its first token did not happen."""
        loop = self.loop
        if loop is not None:
            if loop.picks:
                self.talk.take([*loop.prompt, *(pick.token for pick in loop.picks)])
            self._show(loop)

    def _show(self, loop: DecodeLoop) -> None:
        self.talk.show(cache_report(loop.row, loop.reused))
        self.conversations.put(self.talk)

    def _start(self, loop: DecodeLoop, counter: ProjectionCounter) -> dict[str, Any]:
        return {
            "conversation": self.talk.id,
            "turn": len(self.talk.turns),
            "prompt_tokens": len(loop.prompt),
            "reused_tokens": loop.reused,
            "tokens": labels(loop.row.model, loop.prompt),
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
        return {"finish": loop.ending.finish, "usage": usage, "cost": cost, "text": loop.text}
