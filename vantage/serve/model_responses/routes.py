"""``POST /v1/responses``, and the responses that were stored."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vantage.serve.chat import ChatWriter
from vantage.serve.errors import ApiError
from vantage.serve.generation_call import ChoiceUpdate, Endpoint, GenerationCall, unless_client_leaves
from vantage.serve.model_responses.answers import DeletedResponse, ModelResponse
from vantage.serve.model_responses.conversation import add_call, chat_request, messages_of
from vantage.serve.model_responses.events import ResponseWriter, written
from vantage.serve.model_responses.requests import ResponseRequest
from vantage.serve.openapi import answers
from vantage.serve.requests import AssistantMessage, Message
from vantage.serve.state import entry_of, state_of, tenant_of
from vantage.serve.stream import EventStream
from vantage.serve.submissions import chat_submissions

router = APIRouter()
ENDPOINT = Endpoint("resp_", "response", "response", chat_submissions, ChatWriter, lambda body: 1)
Updates = AsyncGenerator[list[ChoiceUpdate]]


@router.post("/v1/responses", responses=answers(ModelResponse, stream=True), tags=["openai"])
async def create_response(request: Request, body: ResponseRequest) -> Response:
    """Answer a text or a conversation, and go on from an earlier response."""
    state, entry = state_of(request), entry_of(request)
    entry.model, entry.user = body.model, body.user
    if state.log.prompts:
        entry.prompt = body.model_dump(exclude_none=True, by_alias=True)
    messages = messages_of(body.input)
    if body.previous_response_id is not None:
        stored = state.stored_responses.get(tenant_of(request), body.previous_response_id, param="previous_response_id")
        messages = [*stored.messages, *messages]
    call = GenerationCall(ENDPOINT, chat_request(body, messages), state, request)
    writer, updates = ResponseWriter(call.id, call.created, body), call.updates()
    if not body.stream:
        return JSONResponse(await unless_client_leaves(request, _whole(call, writer, updates, messages)))
    first = await unless_client_leaves(request, _first(updates))
    events = _events(call, writer, updates, first, messages)
    return EventStream(events, stall_s=state.settings.limits.stall_s, abort=state.abort, close=updates.aclose)


@router.get("/v1/responses/{response_id}", responses=answers(ModelResponse), tags=["openai"])
async def get_response(request: Request, response_id: str) -> Response:
    """A response that was stored."""
    stored = state_of(request).stored_responses.get(tenant_of(request), response_id, param="response_id")
    return JSONResponse(stored.response)


@router.delete("/v1/responses/{response_id}", responses=answers(DeletedResponse), tags=["openai"])
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a response that was stored."""
    state_of(request).stored_responses.delete(tenant_of(request), response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


async def _first(updates: Updates) -> list[ChoiceUpdate]:
    return await anext(updates)


async def _whole(
    call: GenerationCall, writer: ResponseWriter, updates: Updates, messages: list[Message]
) -> dict[str, Any]:
    async with contextlib.aclosing(updates):
        async for batch in updates:
            _take(call, writer, batch)
    writer.end(call.usage())
    _keep(call, writer, messages)
    return writer.response()


async def _events(
    call: GenerationCall, writer: ResponseWriter, updates: Updates, first: list[ChoiceUpdate], messages: list[Message]
) -> AsyncGenerator[str]:
    async with contextlib.aclosing(updates):
        try:
            yield written([*writer.begin(), *_take(call, writer, first)])
            async for batch in updates:
                if text := written(_take(call, writer, batch)):
                    yield text
        except ApiError as e:  # the status was sent long ago
            entry_of(call.request).error = e.code
            yield written(writer.fail(e))
            return
        end = written(writer.end(call.usage()))
        _keep(call, writer, messages)
        yield end


def _take(call: GenerationCall, writer: ResponseWriter, batch: list[ChoiceUpdate]) -> list[dict[str, Any]]:
    assert call.writer is not None, "made before the first update"
    return [event for update in batch for chunk in call.writer.update(update) for event in writer.take(chunk)]


def _keep(call: GenerationCall, writer: ResponseWriter, messages: list[Message]) -> None:
    """For requests that go on from it; and in the log, where answers are logged."""
    response = writer.response()
    if call.state.log.prompts:
        entry_of(call.request).answer = response["output"]
    if not response["store"]:
        return
    conversation = [*messages]
    for item in response["output"]:
        if item["type"] == "message":
            text = "".join(part["text"] for part in item["content"])
            conversation.append(AssistantMessage(role="assistant", content=text))
        else:
            add_call(conversation, item["call_id"], item["name"], item["arguments"])
    call.state.stored_responses.put(tenant_of(call.request), response, conversation)
