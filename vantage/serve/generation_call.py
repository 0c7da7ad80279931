"""One request that generates, from its fields to its answer: shared by chats and completions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, final

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from vantage import __version__
from vantage.serve.answer_text import Voice
from vantage.serve.engine_jobs import EngineJob, Submission, sample_events
from vantage.serve.errors import ApiError, cancelled, late
from vantage.serve.model_pool import LoadedModel
from vantage.serve.requests import Generates
from vantage.serve.state import ServerState, entry_of, state_of, tenant_of
from vantage.serve.stream import EventStream

T = TypeVar("T")


@final
@dataclass(frozen=True)
class ChoiceUpdate:
    """News of one choice."""

    choice: int
    text: str
    voice: Voice
    finish: str | None


class AnswerWriter(Protocol):
    """How an endpoint words its answers. One for each request."""

    def news(self, said: ChoiceUpdate) -> list[dict[str, Any]]:
        """Choices of a chunk."""
        ...

    def whole(self) -> list[dict[str, Any]]:
        """Choices of the whole answer, after all news."""
        ...


@final
@dataclass(frozen=True)
class Endpoint:
    """What chats and completions do differently."""

    prefix: str  # of ids
    whole: str  # the ``object`` of an answer
    chunk: str
    submissions: Callable[[LoadedModel, Any, str | None], list[Submission]]
    writer: Callable[[LoadedModel, Any], AnswerWriter]
    prompts: Callable[[Any], int]  # how many there are


@final
@dataclass
class GenerationCall:
    """A request on its way."""

    kind: Endpoint
    body: Generates
    state: ServerState
    request: Request
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    jobs: list[EngineJob] = field(default_factory=list)
    voices: list[Voice] = field(default_factory=list)
    writer: AnswerWriter | None = None

    def __post_init__(self) -> None:
        self.id = f"{self.kind.prefix}-{secrets.token_hex(12)}"

    async def news(self) -> AsyncGenerator[list[ChoiceUpdate]]:
        """Everything from the lease of the model to the last token. Whatever ends it ends the jobs."""
        n, entry = self.body.n or 1, entry_of(self.request)
        deadline = asyncio.get_running_loop().time() + self.state.settings.limits.request_s
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout_at(deadline):
                    loaded, submissions = await self._prepared(held)
            except TimeoutError:
                raise late() from None
            news = asyncio.Event()
            self.jobs = [loaded.worker.submit(submission, news) for submission in submissions]
            try:
                async for batch in sample_events(self.jobs, news, deadline):
                    if entry.first_token_ms is None:
                        seconds = time.perf_counter() - entry.begun
                        entry.first_token_ms = round(1e3 * seconds, 1)
                        self.state.metrics.first_token.observe(seconds, model=self.body.model)
                    said = [self._heard(job * n + event.sample, event) for job, event in batch]
                    yield [one for one in said if one.text or one.finish is not None]
                self.state.finished_requests.put(tenant_of(self.request), self.id, self.body.model, self.jobs)
            finally:
                for job in self.jobs:
                    job.end()
                self._account()

    async def _prepared(self, held: contextlib.AsyncExitStack) -> tuple[LoadedModel, list[Submission]]:
        """The model, loaded and with places for all samples, and what to ask of it."""
        body, tenant = self.body, tenant_of(self.request)
        loaded = await held.enter_async_context(self.state.model_pool.lease(body.model))
        held.enter_context(loaded.worker.seats((body.n or 1) * self.kind.prompts(body)))
        submissions = await self.state.model_pool.prepare(lambda: self.kind.submissions(loaded, body, tenant))
        entry_of(self.request).prompt_tokens = sum(submission.prompt_tokens for submission in submissions)
        self.writer = self.kind.writer(loaded, body)
        self.voices = [Voice(loaded, submission.stop) for submission in submissions for _ in range(submission.n)]
        return loaded, submissions

    def _heard(self, choice: int, event: Any) -> ChoiceUpdate:
        voice = self.voices[choice]
        return ChoiceUpdate(choice, voice.push(event), voice, voice.finish)

    def _account(self) -> None:
        entry, usage = entry_of(self.request), self.usage()
        entry.completion_tokens = usage["completion_tokens"]
        entry.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        entry.finish = [voice.finish or "cut" for voice in self.voices]
        if entry.first_token_ms is not None and entry.completion_tokens:
            seconds = time.perf_counter() - entry.begun - entry.first_token_ms / 1e3
            most = max(voice.tokens for voice in self.voices)
            self.state.metrics.per_token.observe(seconds / max(1, most - 1), model=self.body.model)

    def usage(self) -> dict[str, Any]:
        prompt = sum(job.submission.prompt_tokens for job in self.jobs)
        completion = sum(voice.tokens for voice in self.voices)
        cached = sum(job.cached_tokens for job in self.jobs)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def wrapped(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.body.model,
            "system_fingerprint": f"vantage-{__version__}",
            "choices": list(choices),
        }


async def respond(request: Request, body: Generates, kind: Endpoint) -> Response:
    """The answer to a request, whole or as a stream. The first news decide the status of a stream."""
    state, entry = state_of(request), entry_of(request)
    entry.model, entry.user = body.model, body.user
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "invalid_value", "stream_options is for stream: true", param="stream_options")
    if state.log.prompts:
        entry.prompt = body.model_dump(exclude_none=True, by_alias=True)
    asked = GenerationCall(kind, body, state, request)
    news = asked.news()
    if not body.stream:
        return JSONResponse(await unless_client_leaves(request, _collected(asked, news)))
    first = await unless_client_leaves(request, _first(news))
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    chunks = _chunks(asked, news, first, usage)
    return EventStream(chunks, stall_s=state.settings.limits.stall_s, abort=state.abort, close=news.aclose)


async def _collected(asked: GenerationCall, news: AsyncGenerator[list[ChoiceUpdate]]) -> dict[str, Any]:
    async with contextlib.aclosing(news):
        async for batch in news:
            assert asked.writer is not None, "made before the first news"
            for said in batch:
                asked.writer.news(said)
    assert asked.writer is not None, "every answer has at least one token"
    choices = asked.writer.whole()
    if asked.state.log.prompts:
        entry_of(asked.request).answer = choices
    return {**asked.wrapped(asked.kind.whole, choices), "usage": asked.usage()}


async def _first(news: AsyncGenerator[list[ChoiceUpdate]]) -> list[ChoiceUpdate]:
    return await anext(news)


async def _chunks(
    asked: GenerationCall, news: AsyncGenerator[list[ChoiceUpdate]], first: list[ChoiceUpdate], usage: bool
) -> AsyncGenerator[str]:
    """Server-sent events, those of one step together."""

    def written(batch: Sequence[ChoiceUpdate]) -> str:
        assert asked.writer is not None, "made before the first news"
        choices = [choice for said in batch for choice in asked.writer.news(said)]
        extra = {"usage": None} if usage else {}
        return "".join(_event({**asked.wrapped(asked.kind.chunk, [choice]), **extra}) for choice in choices)

    async with contextlib.aclosing(news):
        try:
            yield written(first)
            async for batch in news:
                if text := written(batch):
                    yield text
        except ApiError as e:  # the status was sent long ago
            entry_of(asked.request).error = e.code
            yield _event(e.body())
            return
        if usage:
            yield _event({**asked.wrapped(asked.kind.chunk, []), "usage": asked.usage()})
        if asked.state.log.prompts and asked.writer is not None:
            entry_of(asked.request).answer = asked.writer.whole()
        yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def unless_client_leaves(request: Request, work: Awaitable[T]) -> T:
    """Does the work unless the client goes away: then it is stopped where it stands."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raise cancelled()
    finally:
        gone.cancel()
        task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
