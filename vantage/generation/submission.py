"""What comes before a request is queued: refusing what could never run, and the samples that it begins as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.generation.block_memory import BlockMemory
from vantage.generation.limits import GenerationLimits
from vantage.generation.request import Request
from vantage.generation.running_samples import RunningSample
from vantage.generation.sampling import Constraint, Picker
from vantage.generation.stops import AnswerText
from vantage.model import Model


def token_ids(name: str, tokens: Sequence[int] | Tensor) -> tuple[int, ...]:
    """The tokens of an argument, as whole numbers."""
    listed = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
    if [*map(type, listed)].count(int) == len(listed):  # a long prompt is looked at once, not token by token
        return tuple(listed)
    for token in listed:
        if not isinstance(token, int) or isinstance(token, bool):
            raise BadInput(f"{name} hold {token!r}: give one sequence of whole numbers")
    return tuple(listed)


@final
@dataclass(frozen=True)
class RequestChecks:
    """What an engine can take: its model, the model's lengths, its blocks, and how many rows run at once."""

    model: Model
    limits: GenerationLimits
    memory: BlockMemory
    rows: int

    def check(
        self, prompt: tuple[int, ...], source: tuple[int, ...] | None, max_tokens: int, n: int, *, scores: bool
    ) -> None:
        """Raises, by name, where such a request could not run. ``scores``: the prompt gets log-probabilities."""
        if not prompt:
            raise BadInput("an empty prompt: give at least one token (a beginning-of-text token, if there is nothing)")
        if max_tokens < (0 if scores else 1):
            raise BadInput(f"max_tokens={max_tokens}: give at least {0 if scores else 1}")
        if scores and source is not None:
            raise BadInput(
                "prompt_logprobs: this model reads its prompt with an encoder, which gives it no probabilities"
            )
        if not 1 <= n <= self.rows:
            raise BadInput(f"n={n}: give from 1 to {self.rows}, the rows of this engine")
        encoder = self.model.encoder
        if source is not None:
            if encoder is None:
                raise BadInput("this model has no encoder: leave source out")
            encoder.embed.tokens.check(torch.tensor([source]))
        elif encoder is not None:
            raise BadInput("this model reads a source: pass source=")
        total = len(prompt) + max(1, self.limits.cut(len(prompt), max_tokens)) - 1
        if not self.memory.fits(total):
            raise BadInput(
                f"a prompt of {len(prompt)} tokens and max_tokens={max_tokens} need {total} tokens of cache, more than "
                "this engine has in all: make it with a larger capacity, or ask for less"
            )


def new_samples(
    request: Request, constraints: Iterable[Constraint | None], model: Model, limits: GenerationLimits
) -> list[RunningSample]:
    """One for each output of the request, each with a constraint of its own; the first has the others as siblings."""
    prompt, sampling = request.tokens, request.sampling
    most = limits.cut(len(prompt), request.max_tokens)
    samples = [
        RunningSample(
            request,
            output,
            Picker(sampling, prompt, vocab=model.spec.vocab, sample=output.sample, constraint=constraint),
            AnswerText(request.stop, model.tokenizer, max_tokens=most, constraint=constraint),
            list(prompt),
            chunked=len(prompt),
        )
        for output, constraint in zip(request.outputs, constraints, strict=True)
    ]
    samples[0].siblings = samples[1:]
    return samples
