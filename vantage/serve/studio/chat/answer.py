"""One answer of a conversation, as events: each token with its distribution, its attention, the cache and the cost."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from vantage.generation import Sampling, Stop
from vantage.generation.cached_sequence import Ending
from vantage.generation.prompts import end_tokens
from vantage.generation.sampling import Pick, Picker
from vantage.inspect.select import labels
from vantage.model import Model
from vantage.serve.errors import bad
from vantage.serve.studio.chat.talks import Talk, Talks, Turn
from vantage.serve.studio.chat.watch import AttentionWatch, ProjectionCounter, cache_report

Event = tuple[str, dict[str, Any]]  # its name, and the fields of its model in answers.py
CHUNK = 128  # prompt tokens between two looks whether the reader is still there
LIKELY = 12  # tokens of the distribution beside each token
LEAST = -9999.0  # JSON has no infinity


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
class Answer:
    """One answer on its way. Runs in the thread of its model. ``layer``: whose attention is watched; "mean": of all."""

    talks: Talks
    talk: Talk
    message: str
    sampling: Sampling
    most: int
    layer: int | str | None
    picks: list[Pick] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    finish: str = "stopped"
    first_ms: float = 0.0

    @torch.inference_mode()
    def run(self) -> Generator[Event]:
        """Everything from the prompt to the end. Whoever closes this early keeps what was said."""
        began = time.perf_counter()
        talk, row, model = self.talk, self.talk.row, self.talk.row.model
        prompt, plainly = talk.prompt(self.message)
        most = self._room(model, prompt)
        gaze = (
            None if self.layer is None else AttentionWatch(model, self.layer if isinstance(self.layer, int) else None)
        )
        picker = Picker(self.sampling, prompt, vocab=model.spec.vocab, sample=len(talk.turns))
        ending = Ending(Stop.of(None).also(end_tokens(model)), model.tokenizer)
        reused = row.match(prompt)
        meter = ProjectionCounter(row)
        talk.show(cache_report(row, reused))
        self.talks.put(talk)
        yield (
            "start",
            {
                "conversation": talk.id,
                "turn": len(talk.turns),
                "prompt_tokens": len(prompt),
                "reused_tokens": reused,
                "tokens": labels(model, prompt),
                "cache": cache_report(row, reused),
                "cost": meter.counts(),
            },
        )
        try:
            yield from self._read(prompt[reused:-1], meter)
            for event in self._write(prompt, reused, most, picker, ending, gaze, meter):
                self.first_ms = self.first_ms or 1e3 * (time.perf_counter() - began)
                yield event
            self.finish = "length" if ending.why is None else "stop"
        finally:
            text = self._keep(prompt, plainly, ending, reused)
        yield "done", self._done(prompt, reused, meter, text, 1e3 * (time.perf_counter() - began))

    def _room(self, model: Model, prompt: list[int]) -> int:
        limit = model.context_length
        if not prompt:
            raise bad("the message is empty: write something", "message")
        if limit is not None and len(prompt) >= limit:
            raise bad(
                f"this conversation has {len(prompt):,} tokens with the new message, and the model's context is "
                f"{limit:,}: shorten the message, branch from an earlier turn, or start a new conversation",
                "message",
                "context_length_exceeded",
            )
        return self.most if limit is None else min(self.most, limit - len(prompt))

    def _read(self, tokens: list[int], meter: ProjectionCounter) -> Iterator[Event]:
        """The prompt but for its last token, in pieces: natively, since nobody watches these."""
        for at in range(0, len(tokens), CHUNK):
            self.talk.row.feed(tokens[at : at + CHUNK])
            meter.count()
            yield "prompt", {"done": min(at + CHUNK, len(tokens)), "total": len(tokens)}

    def _write(
        self,
        prompt: list[int],
        reused: int,
        most: int,
        picker: Picker,
        ending: Ending,
        gaze: AttentionWatch | None,
        meter: ProjectionCounter,
    ) -> Iterator[Event]:
        row, model, pending = self.talk.row, self.talk.row.model, prompt[-1:]
        for index in range(len(prompt), len(prompt) + most):
            began = time.perf_counter()
            with contextlib.nullcontext() if gaze is None else gaze.on():
                logits = row.feed(pending)[-1]
            meter.passed()
            pick = picker.pick(logits)
            picker.took(pick.token)
            over = ending(pick.token)
            self.picks.append(pick)
            self.shown.append(ending.shown())
            self.talks.keep(self.talk.id, index, logits.clone())
            said: dict[str, Any] = {
                "index": index,
                "id": pick.token,
                "text": self.shown[-1],
                "token": labels(model, [pick.token])[0],
                "logprob": pick.logprob if math.isfinite(pick.logprob) else LEAST,
                "top": likely(model, picker.sampling, logits, LIKELY),
                "attention": [] if gaze is None else gaze.take(),
                "cache": cache_report(row, reused),
                "cost": meter.counts(),
            }
            yield "token", {**said, "ms": round(1e3 * (time.perf_counter() - began), 3)}
            if over:
                return
            pending = [pick.token]

    def _keep(self, prompt: list[int], plainly: list[int], ending: Ending, reused: int) -> str:
        """Take in an answer, whole or broken off; its text. What was stopped before its first token did not happen."""
        talk, tokens = self.talk, tuple(pick.token for pick in self.picks)
        # after an interrupt anywhere; and nobody has asked yet what follows the last token
        talk.row.settle([*prompt, *tokens[:-1]] if tokens else prompt)
        text = "".join(self.shown) + ending.flush()
        if tokens:
            ended = ending.why == "stop token"
            turn = Turn(self.message, text, self.finish, tuple(prompt), tuple(plainly), tokens, ended, talk.id)
            talk.turns = (*talk.turns, turn)
        talk.show(cache_report(talk.row, reused))
        self.talks.put(talk)
        return text

    def _done(
        self, prompt: list[int], reused: int, meter: ProjectionCounter, text: str, total_ms: float
    ) -> dict[str, Any]:
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(self.picks),
            "total_tokens": len(prompt) + len(self.picks),
            "reused_tokens": reused,
        }
        times = {"ms_total": round(total_ms, 3), "ms_first": round(self.first_ms, 3)}
        return {"finish": self.finish, "usage": usage, "cost": {**meter.counts(), **times}, "text": text}
