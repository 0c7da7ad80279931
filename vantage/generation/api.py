"""``vt.generate``: prompts in, texts out, through one engine."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, final

import torch

from vantage.errors import BadInput
from vantage.generation.decode import speculative
from vantage.generation.engine import Engine
from vantage.generation.prefix import Match
from vantage.generation.prompts import PromptBatch, end_tokens, start_token
from vantage.generation.request import Output, Request
from vantage.generation.sampling import Constraint, Pick, Sampling, fork_constraint
from vantage.generation.speculate import Draft
from vantage.generation.stats import Stats
from vantage.generation.stops import Stop
from vantage.model import Model


class Guesses(NamedTuple):
    """Tokens that were guessed ahead, how many of them were right, and the model's passes."""

    guessed: int
    kept: int
    calls: int


@final
@dataclass(frozen=True)
class Generation:
    """One answer. Prints as its text."""

    text: str | None  # None: the model has no tokenizer
    tokens: tuple[int, ...]
    finish_reason: str  # "stop" or "length"
    prompt: tuple[int, ...]  # what the answer follows: for an encoder-decoder, its source
    logprobs: tuple[Pick, ...] | None  # where asked for: each token's, and the best ones beside it
    seed: int  # the one that was given, or drawn
    prefix: Match  # how much of the prompt had been computed before, and why not more
    stats: Stats | None = field(default=None, repr=False)
    guesses: Guesses | None = None  # with a draft

    def __str__(self) -> str:
        return " ".join(map(str, self.tokens)) if self.text is None else self.text

    def to_json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["stats"] = None if self.stats is None else asdict(self.stats)
        values["logprobs"] = None if self.logprobs is None else [asdict(pick) for pick in self.logprobs]
        values["guesses"] = None if self.guesses is None else self.guesses._asdict()
        return {**values, "prefix": self.prefix._asdict()}


@final
@dataclass(frozen=True)
class Piece:
    """A token of an answer as it comes. ``text`` is what became certain with it, which may be nothing."""

    prompt: int  # which prompt, which sample
    sample: int
    text: str
    pick: Pick | None
    finish_reason: str | None = None

    def __str__(self) -> str:
        return self.text


def generate(
    model: Model,
    prompts: Any,
    *,
    max_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    stop: Any = None,
    ends: bool = True,
    seed: int | None = None,
    n: int = 1,
    logprobs: int | None = None,
    schema: Mapping[str, Any] | str | None = None,
    regex: str | None = None,
    constraint: Constraint | None = None,
    chat: bool = False,
    start: int | None = None,
    stream: bool = False,
    batch_invariant: bool = False,
    draft: Draft | None = None,
    cache: bool = True,
    stats: bool = False,
) -> Any:
    """Go on from prompts: a text, tokens or messages (role and content), or a list of these.

    Returns a ``Generation`` for one prompt and a list for a list; with ``n`` above 1, a list of samples
    in the place of each. ``stream=True``: a ``Stream`` of ``Piece``. A temperature of 0 is greedy.
    ``stop``: strings and tokens, besides the model's own ``ends``. ``schema`` (JSON), ``regex`` or a
    ``constraint`` of one's own: answers are held to it. ``chat``: a text is what a user says in a
    conversation. An encoder-decoder reads the prompt as its source and begins with ``start`` (default:
    as its config says). ``batch_invariant``: bit for bit what each prompt gives alone, at the cost of a
    pass for each. ``draft``: guess ahead with ``Lookup()`` or ``DraftModel(small)``, one prompt after
    another. ``cache=False`` computes everything anew for every token. ``stats``: say what was
    done; it is the same for all answers of a call.
    """
    sampling = Sampling(
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias or {},
        seed,
        logprobs,
    )
    batch = PromptBatch.of(model, prompts, chat=chat)
    until = Stop.of(stop).also(end_tokens(model) if ends else ())
    held_to = _constraint(model, schema, regex, constraint)
    if draft is not None:
        _check_draft(n, stream, batch_invariant, cache)
        guessed = [
            _guessed(model, row, draft, max_tokens, sampling, until, held, start) for row, held in _each(batch, held_to)
        ]
        return guessed[0] if batch.single else guessed
    engine = Engine(
        model,
        rows=max(64, n),
        queue=len(batch.rows),
        batch_invariant=batch_invariant,
        cache=cache,
        share_prefixes=len(batch.rows) > 1,
    )
    options = {"sampling": sampling, "stop": until, "n": n, "max_tokens": max_tokens}
    requests = [_submit(engine, row, start, {**options, "constraint": held}) for row, held in _each(batch, held_to)]
    coming = Stream(engine, requests, batch.rows)
    if stream:
        return coming
    for _ in coming:
        pass
    answers = coming.answers(engine.stats if stats else None, logprobs is not None)
    shaped = [answer if n > 1 else answer[0] for answer in answers]
    return shaped[0] if batch.single else shaped


def _submit(engine: Engine, row: tuple[int, ...], start: int | None, options: dict[str, Any]) -> Request:
    """An encoder-decoder reads the prompt as its source."""
    model = engine.model
    if model.encoder is None:
        return engine.submit(row, **options)
    return engine.submit([start_token(model) if start is None else start], source=row, **options)


def _each(batch: PromptBatch, constraint: Constraint | None) -> Iterator[tuple[tuple[int, ...], Constraint | None]]:
    """Every prompt, with a constraint of its own."""
    last = len(batch.rows) - 1
    for i, row in enumerate(batch.rows):
        yield row, constraint if i == last else fork_constraint(constraint)


def _check_draft(n: int, stream: bool, batch_invariant: bool, cache: bool) -> None:
    """Guessing ahead runs one sample at a time, on a cache that can go back."""
    unfit = {"n": n > 1, "stream": stream, "batch_invariant": batch_invariant, "cache=False": not cache}
    if named := [name for name, set_ in unfit.items() if set_]:
        raise BadInput(f"draft and {named[0]} do not go together: leave one of them out")


def _guessed(
    model: Model,
    row: tuple[int, ...],
    draft: Draft,
    max_tokens: int,
    sampling: Sampling,
    until: Stop,
    constraint: Constraint | None,
    start: int | None,
) -> Generation:
    """One answer with guesses checked on the way."""
    encodes = model.encoder is not None
    tokens = [start_token(model) if start is None else start] if encodes else list(row)
    source = torch.tensor([row], device=model.device) if encodes else None
    answer = speculative(
        model,
        tokens,
        max_tokens=max_tokens,
        draft=draft,
        sampling=sampling,
        stop=until,
        constraint=constraint,
        source=source,
    )
    picks = None if sampling.logprobs is None else answer.picks
    guesses, prefix = Guesses(answer.guessed, answer.kept, answer.calls), Match(0, "first seen")
    text = None if model.tokenizer is None else answer.text
    return Generation(text, answer.tokens, answer.finish, row, picks, answer.seed, prefix, guesses=guesses)


def _constraint(
    model: Model, schema: Mapping[str, Any] | str | None, regex: str | None, constraint: Constraint | None
) -> Constraint | None:
    names = [
        name for name, one in (("schema", schema), ("regex", regex), ("constraint", constraint)) if one is not None
    ]
    if len(names) > 1:
        raise BadInput(f"{' and '.join(names)}: an answer can be held to one of them")
    if schema is None and regex is None:
        return constraint
    if model.tokenizer is None:
        raise BadInput(f"{names[0]} is about texts, and this model has no tokenizer")
    from vantage.generation import constrain  # its library is loaded only where it is needed

    ends = sorted(end_tokens(model))
    if schema is not None:
        return constrain.json_schema(schema, model.tokenizer, ends=ends)
    return constrain.regex(regex or "", model.tokenizer, ends=ends)


@final
class Stream:
    """Answers as they come: an iterator of ``Piece``. Closing it, or letting go of it, stops the requests."""

    def __init__(self, engine: Engine, requests: list[Request], prompts: Sequence[tuple[int, ...]]):
        self._engine, self._requests, self._prompts = engine, requests, prompts
        self._index = {request.id: i for i, request in enumerate(requests)}
        self._coming = self._pieces()

    def __iter__(self) -> Iterator[Piece]:
        return self._coming

    def __next__(self) -> Piece:
        return next(self._coming)

    def close(self) -> None:
        self._coming.close()

    @property
    def stats(self) -> Stats:
        """What has been done so far."""
        return self._engine.stats

    def _pieces(self) -> Generator[Piece]:
        try:
            while not self._engine.idle:
                for event in self._engine.step():
                    if event.request.error is not None:
                        raise event.request.error
                    at = self._index[event.request.id]
                    yield Piece(at, event.sample, event.text, event.pick, event.finish)
        finally:
            for request in self._requests:
                self._engine.cancel(request)

    def answers(self, stats: Stats | None, logprobs: bool) -> list[list[Generation]]:
        return [
            [self._answer(i, request, output, stats, logprobs) for output in request.outputs]
            for i, request in enumerate(self._requests)
        ]

    def _answer(self, i: int, request: Request, output: Output, stats: Stats | None, logprobs: bool) -> Generation:
        assert output.finish is not None, "this sample is not finished"
        assert request.prefix is not None, "this request has not begun"
        return Generation(
            output.text,
            tuple(output.tokens),
            output.finish,
            self._prompts[i],
            tuple(output.picks) if logprobs else None,
            output.seed,
            request.prefix,
            stats,
        )
