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
from vantage.generation import Event
from vantage.serve.engine_jobs import EngineJob, Submission, sample_events
from vantage.serve.errors import ApiError, cancelled, late
from vantage.serve.logprobs import ChoiceTokens
from vantage.serve.model_pool import LoadedModel
from vantage.serve.requests import Generates
from vantage.serve.state import ServerState, entry_of, state_of, tenant_of
from vantage.serve.stream import EventStream

T = TypeVar("T")


@final
@dataclass(frozen=True)
class ChoiceUpdate:
    """What is new of one choice."""

    choice: int
    text: str
    tokens: ChoiceTokens
    finish: str | None


class AnswerWriter(Protocol):
    """How an endpoint words its answers. One for each request."""

    def update(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        """Choices of a chunk."""
        ...

    def whole(self) -> list[dict[str, Any]]:
        """Choices of the whole answer, after all updates."""
        ...


@final
@dataclass(frozen=True)
class Endpoint:
    """What the routes that generate do differently."""

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

    endpoint: Endpoint
    body: Generates
    state: ServerState
    request: Request
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    jobs: list[EngineJob] = field(default_factory=list)
    choices: list[ChoiceTokens] = field(default_factory=list)
    writer: AnswerWriter | None = None

    def __post_init__(self) -> None:
        self.id = f"{self.endpoint.prefix}{secrets.token_hex(12)}"

    async def updates(self) -> AsyncGenerator[list[ChoiceUpdate]]:
        """Everything from the lease of the model to the last token. Whatever ends it ends the jobs."""
        n, entry = self.body.n or 1, entry_of(self.request)
        deadline = asyncio.get_running_loop().time() + self.state.settings.limits.request_s
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout_at(deadline):
                    loaded, submissions = await self._prepared(held)
            except TimeoutError:
                raise late() from None
            arrived = asyncio.Event()
            self.jobs = [loaded.worker.submit(submission, arrived) for submission in submissions]
            try:
                async for batch in sample_events(self.jobs, arrived, deadline):
                    if entry.first_token_ms is None:
                        seconds = time.perf_counter() - entry.begun
                        entry.first_token_ms = round(1e3 * seconds, 1)
                        self.state.metrics.first_token.observe(seconds, model=self.body.model)
                    updates = [self._update(job * n + event.sample, event) for job, event in batch]
                    yield [update for update in updates if update.text or update.finish is not None]
                self.state.finished_requests.put(tenant_of(self.request), self.id, self.body.model, self.jobs)
            finally:
                for job in self.jobs:
                    job.end()
                self._account()

    async def _prepared(self, held: contextlib.AsyncExitStack) -> tuple[LoadedModel, list[Submission]]:
        """The model, loaded and with places for all samples, and what to ask of it."""
        body, tenant = self.body, tenant_of(self.request)
        loaded = await held.enter_async_context(self.state.model_pool.lease(body.model))
        held.enter_context(loaded.worker.seats((body.n or 1) * self.endpoint.prompts(body)))
        submissions = await self.state.model_pool.prepare(lambda: self.endpoint.submissions(loaded, body, tenant))
        entry_of(self.request).prompt_tokens = sum(submission.prompt_tokens for submission in submissions)
        self.writer = self.endpoint.writer(loaded, body)
        self.choices = [ChoiceTokens(loaded) for submission in submissions for _ in range(submission.n)]
        return loaded, submissions

    def _update(self, choice: int, event: Event) -> ChoiceUpdate:
        tokens = self.choices[choice]
        tokens.push(event)
        return ChoiceUpdate(choice, event.text, tokens, event.finish)

    def _account(self) -> None:
        entry, usage = entry_of(self.request), self.usage()
        entry.completion_tokens = usage["completion_tokens"]
        entry.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        entry.finish = [choice.finish or "cut" for choice in self.choices]
        if entry.first_token_ms is not None and entry.completion_tokens:
            seconds = time.perf_counter() - entry.begun - entry.first_token_ms / 1e3
            most = max(choice.count for choice in self.choices)
            self.state.metrics.per_token.observe(seconds / max(1, most - 1), model=self.body.model)

    def usage(self) -> dict[str, Any]:
        prompt = sum(job.submission.prompt_tokens for job in self.jobs)
        completion = sum(choice.count for choice in self.choices)
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


async def respond(request: Request, body: Generates, endpoint: Endpoint) -> Response:
    """The answer to a request, whole or as a stream. The first updates decide the status of a stream."""
    state, entry = state_of(request), entry_of(request)
    entry.model, entry.user = body.model, body.user
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "invalid_value", "stream_options is for stream: true", param="stream_options")
    if state.log.prompts:
        entry.prompt = body.model_dump(exclude_none=True, by_alias=True)
    call = GenerationCall(endpoint, body, state, request)
    updates = call.updates()
    if not body.stream:
        return JSONResponse(await unless_client_leaves(request, _collected(call, updates)))
    first = await unless_client_leaves(request, _first(updates))
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    chunks = _chunks(call, updates, first, usage)
    return EventStream(chunks, stall_s=state.settings.limits.stall_s, abort=state.abort, close=updates.aclose)


async def _collected(call: GenerationCall, updates: AsyncGenerator[list[ChoiceUpdate]]) -> dict[str, Any]:
    async with contextlib.aclosing(updates):
        async for batch in updates:
            assert call.writer is not None, "made before the first update"
            for update in batch:
                call.writer.update(update)
    assert call.writer is not None, "every answer has at least one token"
    choices = call.writer.whole()
    if call.state.log.prompts:
        entry_of(call.request).answer = choices
    return {**call.wrapped(call.endpoint.whole, choices), "usage": call.usage()}


async def _first(updates: AsyncGenerator[list[ChoiceUpdate]]) -> list[ChoiceUpdate]:
    return await anext(updates)


async def _chunks(
    call: GenerationCall, updates: AsyncGenerator[list[ChoiceUpdate]], first: list[ChoiceUpdate], usage: bool
) -> AsyncGenerator[str]:
    """Server-sent events, those of one step together."""

    def written(batch: Sequence[ChoiceUpdate]) -> str:
        assert call.writer is not None, "made before the first update"
        choices = [choice for update in batch for choice in call.writer.update(update)]
        extra = {"usage": None} if usage else {}
        return "".join(_event({**call.wrapped(call.endpoint.chunk, [choice]), **extra}) for choice in choices)

    async with contextlib.aclosing(updates):
        try:
            yield written(first)
            async for batch in updates:
                if text := written(batch):
                    yield text
        except ApiError as e:  # the status was sent long ago
            entry_of(call.request).error = e.code
            yield _event(e.body())
            return
        if usage:
            yield _event({**call.wrapped(call.endpoint.chunk, []), "usage": call.usage()})
        if call.state.log.prompts and call.writer is not None:
            entry_of(call.request).answer = call.writer.whole()
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
