"""``vt.generate``: prompts in, texts out, through one engine."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, final

from vantage.generation.answer_options import AnswerOptions, answer_form
from vantage.generation.drafted import drafted
from vantage.generation.engine import Engine
from vantage.generation.prompts import PromptBatch, check_model, end_tokens
from vantage.generation.request import Output, Request
from vantage.generation.results import Generation, Piece
from vantage.generation.sampling import Constraint, Sampling
from vantage.generation.speculate import Draft, check_draft
from vantage.generation.stats import Stats
from vantage.generation.stops import Stop
from vantage.model import Model
from vantage.spec.images import PreparedImage
from vantage.spec.sampling import check_guessing

ROWS = 64  # samples that run at once, unless a prompt has more


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
    schema: Any = None,
    regex: str | None = None,
    constraint: Constraint | None = None,
    images: Any = None,
    chat: bool = False,
    start: int | None = None,
    stream: bool = False,
    batch_invariant: bool = False,
    draft: Draft | None = None,
    cache: bool = True,
    stats: bool = False,
) -> Any:
    """Generate text from prompts: a text, tokens or messages (role and content), or a list of these.

        answer = vt.generate(model, "The capital of France is", max_tokens=16)
        print(answer)                       # its text; answer.tokens, answer.finish_reason, ...
        for piece in vt.generate(model, "Why is the sky blue?", chat=True, stream=True):
            print(piece, end="")

    Returns a ``Generation`` for one prompt and a list for a list; with ``n`` above 1, a list of samples
    in the place of each; with ``stream=True``, a ``Stream`` of ``Piece``.

    Sampling: ``temperature`` (0, the default, is greedy), ``top_k``, ``top_p``,
    ``min_p``, ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias`` (by token) and
    ``seed``, with their usual meaning.

    When to stop: after ``max_tokens``; at ``stop`` (strings and tokens); at the model's own end-of-text or end-of-turn
    token, unless ``ends=False``. Beyond the model's context length it warns (``vt.ContextWarning``) and counts the
    tokens (``beyond_context``); a model with a last position stops there.

    Constrained output: ``schema``, a JSON schema or a class (pydantic's ``BaseModel``, a dataclass, a ``TypedDict``),
    for which ``answer.parsed`` is an object of it; ``regex``; or a ``constraint`` of your own.

    Input: with ``chat`` a text is sent as a user's message, with the chat template. ``images`` for a model with a
    vision tower: paths, bytes of files, Pillow images or tensors (3, H, W), in the order of their places in the
    prompt (with ``chat`` before the text); for a list of prompts, a list for each. Messages may hold them as well, as
    parts ``{"type": "image", "image": ...}``. An encoder-decoder reads the prompt as its source and begins with the
    token ``start`` (default: as its config says).

    Additional output: ``logprobs``, of each token and of so many alternatives; ``stats``, what was computed, reused and
    cached, the same for all answers of a call.

    Execution: ``batch_invariant``, the same bits as each prompt alone, at the cost of a pass for each; ``draft``,
    speculative decoding with ``vt.Lookup()`` or ``vt.DraftModel(small)``, one prompt after another; ``cache=False``,
    recompute the whole text for every token.
    """
    check_model(model)
    penalties = (repetition_penalty, presence_penalty, frequency_penalty)
    sampling = Sampling(temperature, top_k, top_p, min_p, *penalties, logit_bias or {}, seed, logprobs)
    batch = PromptBatch.of(model, prompts, chat=chat, images=images)
    until = Stop.of(stop).also(end_tokens(model) if ends else ())
    form = answer_form(model, schema, regex, constraint)
    options = AnswerOptions(max_tokens, sampling, until, form, n, start)
    if draft is not None:
        check_draft(draft)
        check_guessing(n=n, stream=stream, batch_invariant=batch_invariant, cache=cache, images=any(batch.images))
        return batch.one_or_all(drafted(model, batch, draft, options, stats=stats))
    engine = Engine(
        model,
        rows=max(ROWS, n),
        queue=len(batch.rows),
        batch_invariant=batch_invariant,
        cache=cache,
        share_prefixes=len(batch.rows) > 1,
    )
    coming = Stream(engine, batch, options)
    if stream:
        return coming
    answers = coming.whole(stats=stats)
    return batch.one_or_all(answers) if n > 1 else batch.one_or_all([samples[0] for samples in answers])


@final
class Stream:
    """Answers as they come: an iterator of ``Piece``. Closing it, or letting go of it, stops the requests."""

    def __init__(self, engine: Engine, batch: PromptBatch, options: AnswerOptions):
        self._engine, self._prompts, self._options = engine, batch.rows, options
        rows = zip(batch.rows, batch.images, options.form.each(len(batch.rows)), strict=True)
        self._requests = [self._submit(*row) for row in rows]
        self._index = {request.id: i for i, request in enumerate(self._requests)}
        self._coming = self._pieces()

    def _submit(
        self, prompt: tuple[int, ...], images: tuple[PreparedImage, ...], constraint: Constraint | None
    ) -> Request:
        options = self._options
        tokens, source = options.begin(self._engine.model, prompt)
        return self._engine.submit(
            tokens,
            max_tokens=options.max_tokens,
            sampling=options.sampling,
            stop=options.stop,
            source=source,
            n=options.n,
            constraint=constraint,
            images=images,
        )

    def __iter__(self) -> Iterator[Piece]:
        return self._coming

    def __next__(self) -> Piece:
        return next(self._coming)

    def __repr__(self) -> str:
        prompts, generated = len(self._prompts), self._engine.stats.generated
        return f"<Stream: {prompts} prompt{'s' * (prompts > 1)}, {generated} tokens so far; its pieces come in a loop>"

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

    def whole(self, *, stats: bool) -> list[list[Generation]]:
        """Wait for all of it: the samples of each prompt."""
        for _ in self._coming:
            pass
        done = self._engine.stats if stats else None
        return [
            [self._answer(prompt, request, output, done) for output in request.outputs]
            for prompt, request in zip(self._prompts, self._requests, strict=True)
        ]

    def _answer(self, prompt: tuple[int, ...], request: Request, output: Output, stats: Stats | None) -> Generation:
        assert output.finish is not None, "this sample is not finished"
        assert request.prefix is not None, "this request has not begun"
        return Generation(
            output.text,
            tuple(output.tokens),
            output.finish,
            prompt,
            None if self._options.sampling.logprobs is None else tuple(output.picks),
            output.seed,
            request.prefix,
            stats,
            beyond_context=output.beyond_context,
            parse=self._options.form.parse,
        )
