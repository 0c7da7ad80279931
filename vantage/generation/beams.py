"""Beam search: the likeliest texts that follow a prompt, or what an encoder read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.cache import CacheKind, ModelCache
from vantage.errors import BadInput, Refused
from vantage.generation.answer_options import AnswerOptions, Begin
from vantage.generation.limits import ContextWatch, GenerationLimits
from vantage.generation.prompts import PromptBatch, check_model, end_tokens
from vantage.generation.results import as_html, shown, text_of
from vantage.generation.sampling import Sampling
from vantage.generation.stops import Stop
from vantage.model import Model
from vantage.model.beam_search import Beams, BeamSearch, Hypothesis, search
from vantage.spec.parts import EncoderOutput


@final
@dataclass(frozen=True, repr=False)
class BeamText:
    """One text that was found. Prints as that."""

    text: str | None  # None: the model has no tokenizer
    tokens: tuple[int, ...]
    finish_reason: str  # "stop" or "length"
    logprob: float  # summed
    score: float  # by which it is ranked

    def __str__(self) -> str:
        return text_of(self.text, self.tokens)

    def __repr__(self) -> str:
        more = (f"score={self.score:.4g}", f"finish_reason={self.finish_reason!r}")
        return shown("BeamText", self.text, self.tokens, *more)

    def _repr_html_(self) -> str:
        return as_html(str(self))


@final
@dataclass(frozen=True, eq=False, repr=False)
class BeamResult:
    """The best texts, best first, and what finding them took. Prints as the best."""

    best: tuple[BeamText, ...]
    prompt: tuple[int, ...]
    calls: int  # forward passes
    computed: int  # tokens whose keys were computed
    beyond_context: int  # tokens of the best text that came from past the context the model was made for
    cache: ModelCache

    @property
    def text(self) -> str | None:
        return self.best[0].text

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.best[0].tokens

    @property
    def finish_reason(self) -> str:
        return self.best[0].finish_reason

    def __str__(self) -> str:
        return str(self.best[0])

    def __repr__(self) -> str:
        return f"<BeamResult: {', '.join(map(repr, self.best))}>"

    def _repr_html_(self) -> str:
        return as_html(str(self))


def beam_search(
    model: Model,
    prompts: Any,
    *,
    max_tokens: int = 128,
    beams: Beams | int = Beams(),
    stop: Stop | int | Sequence[int] | None = None,
    ends: bool = True,
    chat: bool = False,
    start: int | None = None,
    kind: str | CacheKind = "contiguous",
    source: Tensor | EncoderOutput | None = None,
) -> Any:
    """Beam search: the most likely continuations of prompts, in any form that ``vt.generate`` takes.

        print(vt.beam_search(model, "The capital of France is", max_tokens=16, beams=4))

    Returns a ``BeamResult`` for one prompt and a list for a list. ``beams``: the number of beams, or a ``vt.Beams``. A
    text ends with a ``stop`` token, with the model's own end token unless ``ends=False``, or after
    ``max_tokens``. ``chat`` and ``start`` are those of ``vt.generate``; ``kind`` is that of the cache. With a
    ``source`` for an encoder-decoder, the prompt is what its answer begins with.

    If RoPE's frequencies depend on the length, the whole search uses one length that holds all of it.
    """
    check_model(model)
    beams = Beams(beams) if isinstance(beams, int) else beams
    if not isinstance(beams, Beams):
        raise BadInput(f"beams={beams!r}: give a number, or vt.Beams(...)")
    stop = Stop.of(stop)
    if stop.strings:
        raise BadInput(f"beam search stops at tokens, not at strings: got {list(stop.strings)}")
    batch = PromptBatch.of(model, prompts, chat=chat)
    if any(batch.images):
        raise Refused("beam search reads no images: use vt.generate")
    options = AnswerOptions(max_tokens, Sampling(), stop.also(end_tokens(model) if ends else ()), start=start)
    context = ContextWatch(GenerationLimits.of(model))
    results = []
    for prompt in batch.rows:
        begin = Begin(prompt, None) if source is not None else options.begin(model, prompt)
        read = source if begin.source is None else torch.tensor([begin.source], device=model.device)
        results.append(_search(model, prompt, begin.tokens, read, beams, options, kind, context))
        context.warn()
    return batch.one_or_all(results)


@torch.inference_mode()
def _search(
    model: Model,
    prompt: tuple[int, ...],
    tokens: tuple[int, ...],
    source: Tensor | EncoderOutput | None,
    beams: Beams,
    options: AnswerOptions,
    kind: str | CacheKind,
    context: ContextWatch,
) -> BeamResult:
    if not tokens:
        raise BadInput("an empty prompt: give at least one token (a beginning-of-text token, if there is nothing)")
    context.prompt(len(tokens), source.shape[1] if isinstance(source, Tensor) else 0)
    most = context.limits.cut(len(tokens), options.max_tokens)
    cache = model.new_cache(kind=kind, length=context.limits.declared(len(tokens) + most))
    calls = computed = 0

    def logprobs(newest: list[int]) -> Tensor:
        nonlocal calls, computed, source
        new = torch.tensor([[token] for token in newest] if newest else [list(tokens)], device=model.device)
        logits = model.head(model.hidden(new, cache=cache, source=source)[:, -1:])[:, 0]
        calls, computed, source = calls + 1, computed + new.numel(), None
        return logits.double().log_softmax(-1).cpu()

    texts = BeamSearch(beams, options.stop.tokens, most)
    search([texts], logprobs, cache.reorder)
    best = tuple(_text(model, one, options.stop.tokens) for one in texts.finished[: beams.n_best])
    beyond = sum(context.passes(len(tokens) + i) for i in range(len(best[0].tokens)))
    if best[0].finish_reason == "length":
        context.ended(len(tokens), len(best[0].tokens), options.max_tokens)
    return BeamResult(best, prompt, calls, computed, beyond, cache)


def _text(model: Model, one: Hypothesis, ends: frozenset[int]) -> BeamText:
    """A hypothesis with its text; a stop token has none."""
    tokens = one.tokens[:-1] if one.tokens[-1] in ends else one.tokens
    text = None if model.tokenizer is None else model.tokenizer.decode(tokens)
    return BeamText(text, one.tokens, one.finish, one.logprob, one.score)
