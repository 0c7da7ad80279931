"""Answers with a draft: one prompt after another, each with guesses that are checked on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import final

import torch

from vantage.generation.answer_options import AnswerOptions
from vantage.generation.decode import Answer, DecodeLoop, decode_loop, run_whole
from vantage.generation.limits import ContextWatch, GenerationLimits
from vantage.generation.prefix import Match
from vantage.generation.prompts import PromptBatch
from vantage.generation.results import Generation, Guesses
from vantage.generation.speculate import Draft
from vantage.generation.stats import Counters, Stats
from vantage.model import Model

NOT_SHARED = Match(0, "not sought")  # every prompt has a cache of its own


@torch.inference_mode()
def drafted(model: Model, batch: PromptBatch, draft: Draft, options: AnswerOptions, *, stats: bool) -> list[Generation]:
    """An answer to each prompt. ``stats``: say what all of them took together."""
    context, work = ContextWatch(GenerationLimits.of(model)), DraftedWork()
    answers: list[Answer] = []
    for prompt, constraint in zip(batch.rows, options.form.each(len(batch.rows)), strict=True):
        tokens, source = options.begin(model, prompt)
        loop = decode_loop(
            model,
            tokens,
            max_tokens=options.max_tokens,
            draft=draft,
            sampling=options.sampling,
            stop=options.stop,
            constraint=constraint,
            source=None if source is None else torch.tensor([source], device=model.device),
            context=context,
        )
        answers.append(run_whole(loop, options.max_tokens, context))
        work.add(loop, answers[-1])
    done = work.stats() if stats else None
    return [
        Generation(
            None if model.tokenizer is None else answer.text,
            answer.tokens,
            answer.finish_reason,
            prompt,
            None if options.sampling.logprobs is None else answer.picks,
            answer.seed,
            NOT_SHARED,
            done,
            Guesses(answer.proposed, answer.accepted, answer.calls),
            answer.beyond_context,
            options.form.parse,
        )
        for prompt, answer in zip(batch.rows, answers, strict=True)
    ]


@final
class DraftedWork:
    """What several answers took together."""

    def __init__(self) -> None:
        self._counters, self._projections, self._bytes = Counters(), list[tuple[int, ...]](), 0
        self._paths = Counter[str]()

    def add(self, loop: DecodeLoop, answer: Answer) -> None:
        counters = self._counters
        counters.prefilled += answer.prompt - answer.reused
        counters.reused += answer.reused
        counters.generated += len(answer.picks)
        counters.recomputed += answer.recomputed
        counters.steps += answer.calls
        counters.calls += answer.calls
        counters.proposed += answer.proposed
        counters.accepted += answer.accepted
        counters.beyond_context += answer.beyond_context
        for part, ms in loop.times.milliseconds.items():
            counters.milliseconds[part] = counters.milliseconds.get(part, 0.0) + ms
        self._projections.append(loop.row.projections)
        self._paths += loop.row.paths
        self._bytes = max(self._bytes, loop.row.cache.bytes)  # one cache at a time

    def stats(self) -> Stats:
        """There is no pool of blocks, and nothing is kept for requests to come."""
        return Stats(
            **asdict(self._counters),
            projections=tuple(map(sum, zip(*self._projections, strict=True))),
            bytes_held=self._bytes,
            blocks_used=0,
            blocks_free=0,
            prefixes=0,
            paths=dict(self._paths),
        )
