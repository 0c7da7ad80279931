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
    """Go on from prompts: a text, tokens or messages (role and content), or a list of these.

        answer = vt.generate(model, "The capital of France is", max_tokens=16)
        print(answer)                       # its text; answer.tokens, answer.finish_reason, ...
        for piece in vt.generate(model, "Why is the sky blue?", chat=True, stream=True):
            print(piece, end="")

    Returns a ``Generation`` for one prompt and a list for a list; with ``n`` above 1, a list of samples
    in the place of each; with ``stream=True``, a ``Stream`` of ``Piece``.

    How tokens are chosen: ``temperature`` (0, the default, always takes the likeliest), ``top_k``, ``top_p``,
    ``min_p``, ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias`` (by token) and
    ``seed``, as elsewhere.

    Where an answer ends: after ``max_tokens``; at ``stop`` (strings and tokens); at the model's own end of text or
    turn, unless ``ends=False``. It warns (``vt.ContextWarning``) where a text goes past the context that the model was
    made for, and counts such tokens (``beyond_context``); where positions end, an answer ends too.

    What it must look like: ``schema``, a JSON schema or a class (pydantic's ``BaseModel``, a dataclass, a
    ``TypedDict``), and ``answer.parsed`` is an object of it; ``regex``; or a ``constraint`` of one's own.

    What is read: with ``chat`` a text is what a user says to a chat model. ``images`` for a model with a vision tower:
    paths, bytes of files, Pillow images or tensors (3, H, W), in the order of their places in the prompt (with ``chat``
    before the text); for a list of prompts, a list for each. Messages may hold them as well, as parts ``{"type":
    "image", "image": ...}``. An encoder-decoder reads the prompt as its
    source and begins with the token ``start`` (default: as its config says).

    What is told: ``logprobs``, of each token and so many others; ``stats``, what was computed, reused and held, the
    same for all answers of a call.

    How it runs: ``batch_invariant``, bit for bit what each prompt gives alone, at the cost of a pass for each;
    ``draft``, guess ahead with ``vt.Lookup()`` or ``vt.DraftModel(small)``, one prompt after another; ``cache=False``,
    compute everything anew for every token.
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
