"""The decode loop: one sequence stepped forward on its cache, with or without guesses. And what comes of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.generation.cached_sequence import CachedSequence, new_cache
from vantage.generation.images import PromptImages
from vantage.generation.limits import ContextWatch, GenerationLimits, check_evaluating
from vantage.generation.results import as_html, shown
from vantage.generation.sampling import Constraint, Pick, Picker, Sampling
from vantage.generation.speculate import Draft, Guess, checked
from vantage.generation.stats import Counters
from vantage.generation.stops import AnswerText, Stop
from vantage.model import Model
from vantage.spec.parts import EncoderOutput


@final
@dataclass(frozen=True, repr=False)
class Answer:
    """One answer, and what it took. Prints as its text."""

    text: str  # nothing, if the model has no tokenizer
    finish_reason: str  # "stop", "length", or "stopped" by hand
    picks: tuple[Pick, ...]
    seed: int
    prompt: int  # tokens before the answer
    reused: int  # of those, how many had their keys and values already
    computed: int  # tokens whose keys were computed: what is new of the prompt, the answer, and guesses
    recomputed: int  # tokens that had been computed before and had to be again
    calls: int  # forward passes, those of the answer included
    proposed: int  # tokens that a draft guessed ahead
    accepted: int  # and those of them that were right
    beyond_context: int  # tokens that came from past the context the model was made for
    to_first: float  # seconds to the first token
    seconds: float  # and to the end

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(pick.token for pick in self.picks)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return shown("Answer", self.text, self.tokens, f"finish_reason={self.finish_reason!r}")

    def _repr_html_(self) -> str:
        return as_html(self.text)


class DecodeStep(NamedTuple):
    """What one pass brought."""

    picks: list[Pick]
    logits_nV: Tensor  # what each was chosen from
    text: str  # that became certain


@final
class DecodeLoop:
    """An answer to a prompt, pass by pass; each pass is at least one token. ``draft=None`` is plain decoding.

    The row goes back to where its tokens and the prompt part. The last token of an answer is not put into
    the row: nobody has asked what follows it. ``begun``: since when its time is counted. ``context``: told
    when the text goes past what the model was made for; ``None``: the caller has seen to it that it does not.
    ``beginning``: tokens that the answer begins with, whatever the model would have written. ``images``: the prompt's.
    """

    def __init__(
        self,
        row: CachedSequence,
        prompt: Sequence[int],
        picker: Picker,
        ending: AnswerText,
        draft: Draft | None = None,
        *,
        begun: float | None = None,
        context: ContextWatch | None = None,
        beginning: Sequence[Pick] = (),
        images: PromptImages | None = None,
    ):
        check_evaluating(row.model)
        self.row, self.prompt, self.picker, self.ending = row, list(prompt), picker, ending
        self.images = images
        self.picks: list[Pick] = []  # of the passes that are complete
        self.text = ""  # of those
        self.complete = False  # the answer came to its end
        self._broken = False  # a pass was interrupted, and the ending may know of tokens that nobody saw
        self._longest = 0 if draft is None else draft.tokens
        self._guesser = None if draft is None else draft.start(row.model, picker)
        self._proposed = self._accepted = self._beyond = 0
        self._context = context
        self.times = Counters()  # of which only those are counted here
        self._begun, self._first = time.perf_counter() if begun is None else begun, 0.0
        self._before = replace(row.work)
        for pick in beginning:
            self._push(pick)
        self.text = ending.take() if beginning else ""
        self._given = [*self.prompt, *(pick.token for pick in self.picks)]  # what the first pass ends with
        self.reused = row.match(self._given, images)

    @property
    def intact(self) -> bool:
        """Whether all tokens that were chosen are in ``picks``."""
        return not self._broken

    def read(self, chunk: int) -> Iterator[int]:
        """Compute the prompt, and what the answer begins with, but for the last token: so many tokens at a time; how
        many are done after each."""
        last, start = len(self._given) - 1, len(self.row.tokens)
        for at in range(start, last, chunk):
            self.row.feed(self._given[at : min(at + chunk, last)])
            yield len(self.row.tokens) - start

    @property
    def unread(self) -> int:
        """Tokens that ``read`` has still to compute."""
        return max(0, len(self._given) - 1 - len(self.row.tokens))

    def run(self) -> Iterator[DecodeStep]:
        """The answer, or what is left of it."""
        pending = self._given[len(self.row.tokens) :]
        while self.ending.ended_by is None:
            self._broken = True
            step = self._step(pending)
            self._first = self._first or time.perf_counter() - self._begun
            self.picks += step.picks
            self.text += step.text
            self._broken = False
            yield step
            pending = [step.picks[-1].token]
        self.complete = True

    def flush(self) -> str:
        """The last of the text, where an answer is broken off."""
        rest = self.ending.flush() if self.intact else ""
        self.text += rest
        return rest

    def answer(self) -> Answer:
        """What has come of it so far."""
        work, before = self.row.work, self._before
        return Answer(
            self.text,
            (self.ending.finish if self.complete else None) or "stopped",
            tuple(self.picks),
            self.picker.seed,
            len(self.prompt),
            self.reused,
            work.computed - before.computed,
            work.recomputed - before.recomputed,
            work.calls - before.calls,
            self._proposed,
            self._accepted,
            self._beyond,
            self._first,
            time.perf_counter() - self._begun,
        )

    def _push(self, pick: Pick) -> None:
        """A token that the answer begins with."""
        if self.ending.ended_by is not None:
            raise BadInput("the answer is to begin with more tokens after one that ends it: leave those out")
        self.picker.took(pick.token)
        self.ending.push(pick.token)
        self.picks.append(pick)

    def _step(self, pending: list[int]) -> DecodeStep:
        """One pass over what is pending and a guess, and what comes of it."""
        row, timed = self.row, self.times.timed
        with timed("draft") if self._guesser is not None else contextlib.nullcontext():
            guess = self._guess(pending)
        n = len(guess.tokens)
        with timed("decode" if self.picks else "prefill"):
            logits = row.feed([*pending, *guess.tokens], n + 1)
        with timed("pick"):
            picks, accepted = self._take(guess, logits)
        if self._guesser is not None:
            self._guesser.learn(n, accepted)
        self._proposed += n
        self._accepted += accepted
        # the last token is pending in the next step, so it must not be held yet
        row.crop(len(row.tokens) - n + len(picks) - 1)
        return DecodeStep(picks, logits[: len(picks)], self.ending.take())

    def _take(self, guess: Guess, logits_nV: Tensor) -> tuple[list[Pick], int]:
        """The tokens that come of a pass, up to the first that was guessed wrongly; and how many were right."""
        picks: list[Pick] = []
        n, accepted, before = len(guess.tokens), 0, len(self.prompt) + len(self.picks)
        for i in range(n + 1):
            pick = checked(self.picker, logits_nV[i], guess, i) if i < n else self.picker.pick(logits_nV[i])
            self.picker.took(pick.token)
            picks.append(pick)
            self._beyond += self._context is not None and self._context.passes(before + i)
            right = i < n and pick.token == guess.tokens[i]
            accepted += right
            if self.ending.push(pick.token) or not right:
                break
        return picks, accepted

    def _guess(self, pending: Sequence[int]) -> Guess:
        """A guess never crosses the declared length: what lies beyond is computed at another one."""
        room, most = self.row.room, min(self.ending.left - 1, self._longest)
        most = min(most, most if room is None else max(0, room - len(pending)))
        if self._guesser is None or most < 1:
            return Guess()
        return self._guesser.guess([*self.row.tokens, *pending], most)


@torch.inference_mode()
def speculative(
    model: Model,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    draft: Draft | None,
    sampling: Sampling = Sampling(),
    stop: Stop | str | int | Sequence[str | int] | None = None,
    constraint: Constraint | None = None,
    row: CachedSequence | None = None,
    source: Tensor | EncoderOutput | None = None,
) -> Answer:
    """Go on from ``tokens`` with guesses from ``draft``: ``Lookup()``, ``DraftModel(small)``, or none.

    ``row`` may hold the first of the tokens already; a ring in its cache must have a ``draft`` of at
    least the guess's length. A stop token ends the answer and is its last token.
    """
    context = ContextWatch(GenerationLimits.of(model))
    loop = decode_loop(
        model,
        tokens,
        max_tokens=max_tokens,
        draft=draft,
        sampling=sampling,
        stop=Stop.of(stop),
        constraint=constraint,
        row=row,
        source=source,
        context=context,
    )
    return run_whole(loop, max_tokens, context)


def run_whole(loop: DecodeLoop, max_tokens: int, context: ContextWatch) -> Answer:
    """Run to the end. What went past the context is told on the way."""
    for _ in loop.run():
        context.warn()
    answer = loop.answer()
    if answer.finish_reason == "length":
        context.ended(answer.prompt, len(answer.picks), max_tokens)
        context.warn()
    return answer


def decode_loop(
    model: Model,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    draft: Draft | None,
    sampling: Sampling,
    stop: Stop,
    constraint: Constraint | None,
    context: ContextWatch,
    row: CachedSequence | None = None,
    source: Tensor | EncoderOutput | None = None,
) -> DecodeLoop:
    """The loop of one answer, made ready: it ends with the model's last position at the latest."""
    if not tokens or max_tokens < 1:
        raise BadInput(f"{len(tokens)} prompt tokens, max_tokens={max_tokens}: give at least 1 of each")
    if row is None:
        row = CachedSequence(model, new_cache(model, "contiguous", 0 if draft is None else draft.tokens), (), source)
    if len(row.tokens) >= len(tokens):
        raise BadInput(
            f"the cache holds {len(row.tokens)} tokens of {len(tokens)}: at least one must be left to compute"
        )
    context.prompt(len(tokens), source.shape[1] if isinstance(source, Tensor) else 0)
    most = context.limits.cut(len(tokens), max_tokens)
    text = AnswerText(stop, model.tokenizer, max_tokens=most, constraint=constraint)
    picker = Picker(sampling, tokens, vocab=model.spec.vocab, constraint=constraint)
    return DecodeLoop(row, tokens, picker, text, draft, context=context)
