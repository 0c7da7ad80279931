"""What ``/v1/responses`` answers, as pydantic models for the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vantage.serve.bounds import Object, StrictModel
from vantage.serve.responses import TokenLogprob

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class AnsweredTextPart(StrictModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Object]
    logprobs: list[TokenLogprob]


class AnsweredMessageItem(StrictModel):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[AnsweredTextPart]


class AnsweredCallItem(StrictModel):
    type: Literal["function_call"]
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


AnsweredItem = Annotated[AnsweredMessageItem | AnsweredCallItem, Field(discriminator="type")]


class CachedDetails(StrictModel):
    cached_tokens: int
    cache_write_tokens: int


class ReasoningDetails(StrictModel):
    reasoning_tokens: int


class ResponseUsage(StrictModel):
    input_tokens: int
    input_tokens_details: CachedDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails
    total_tokens: int


class ResponseFault(StrictModel):
    code: str
    message: str


class IncompleteDetails(StrictModel):
    reason: Literal["max_output_tokens"]


class ModelResponse(StrictModel):
    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    background: bool
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[AnsweredItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: Object
    tool_choice: str | Object
    tools: list[Object]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None


class DeletedResponse(StrictModel):
    id: str
    object: Literal["response"]
    deleted: bool
