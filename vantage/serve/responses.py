"""What is answered, as pydantic models for the OpenAPI description. The answers are built as plain dicts."""

from __future__ import annotations

from typing import Literal

from vantage.serve.bounds import StrictModel


class ErrorDetail(StrictModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(StrictModel):
    error: ErrorDetail


class Card(StrictModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parent: str | None  # of an adapter: the model it is on
    loaded: bool
    kind: Literal["generate", "embed"] | None  # None: not known before it is loaded
    context: int | None


class Cards(StrictModel):
    object: Literal["list"]
    data: list[Card]


class PromptDetails(StrictModel):
    cached_tokens: int


class Usage(StrictModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(StrictModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(StrictModel):
    content: list[TokenLogprob]
    refusal: None


class AnsweredFunction(StrictModel):
    name: str
    arguments: str


class AnsweredCall(StrictModel):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredMessage(StrictModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[AnsweredCall] | None = None


class ChatChoice(StrictModel):
    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(StrictModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(StrictModel):
    tokens: list[str]
    token_logprobs: list[float | None]  # None: the first token of a prompt, which nothing comes before
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(StrictModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(StrictModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class Embedded(StrictModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(StrictModel):
    prompt_tokens: int
    total_tokens: int


class Embeddings(StrictModel):
    object: Literal["list"]
    data: list[Embedded]
    model: str
    usage: EmbeddingUsage


class Tokens(StrictModel):
    tokens: list[int]
    count: int
    max_model_len: int | None


class Detokenized(StrictModel):
    prompt: str


class SiteAttention(StrictModel):
    """One layer. Nested lists by head and query; with "top8" the largest weights of each, and their keys."""

    kind: Literal["self", "cross", "encoder"]
    layer: int
    heads: list[int]
    queries: list[int]
    weights: list[list[list[float]]] | None = None
    keys: list[list[list[int]]] | None = None
    stats: dict[str, list[list[float]]] | None = None


class AttentionOf(StrictModel):
    id: str
    object: Literal["attention"]
    model: str
    choice: int
    keep: str
    prompt_tokens: int
    tokens: list[str]
    source: list[str] | None
    attention: list[SiteAttention]


class Health(StrictModel):
    status: Literal["ok", "draining", "starting"]  # starting: no replica is up
