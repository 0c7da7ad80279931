"""``POST /v1/chat/completions``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from fastapi import APIRouter, Request, Response

from vantage.generation import Pick
from vantage.serve import tools
from vantage.serve.generation_call import ChoiceUpdate, Endpoint, respond
from vantage.serve.logprobs import chat_logprobs
from vantage.serve.model_pool import LoadedModel
from vantage.serve.openapi import answers
from vantage.serve.requests import ChatRequest
from vantage.serve.responses import ChatCompletion
from vantage.serve.submissions import chat_submissions

router = APIRouter()


@final
@dataclass
class _PartialChatChoice:
    """One answer as it grows."""

    parser: tools.ToolParser | None
    begun: bool = False
    text: str = ""
    picks: list[Pick] = field(default_factory=list)
    calls: list[tools.ParsedCall] = field(default_factory=list)
    finish: str | None = None


@final
class ChatWriter:
    def __init__(self, loaded: LoadedModel, body: ChatRequest):
        self._loaded, self._logprobs = loaded, bool(body.logprobs)
        self._names = [tool["function"]["name"] for tool in tools.offered(body)]
        self._many = body.parallel_tool_calls is not False
        self._choices: dict[int, _PartialChatChoice] = {}

    def update(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        choice = self._choices.get(update.choice)
        if choice is None:
            parser = tools.ToolParser(self._names, many=self._many) if self._names else None
            choice = self._choices[update.choice] = _PartialChatChoice(parser)
        picks = update.tokens.take(update.text)
        text = update.text if choice.parser is None else choice.parser.push(update.text)
        if update.finish is not None and choice.parser is not None:
            rest, choice.calls = choice.parser.finish()
            text += rest
        choice.text += text
        choice.picks += picks
        chunks = [] if choice.begun else [self._chunk(update.choice, {"role": "assistant", "content": ""})]
        choice.begun = True
        if text or (picks and self._logprobs):
            chunks.append(self._chunk(update.choice, {"content": text}, picks))
        if update.finish is not None:
            choice.finish = "tool_calls" if choice.calls else update.finish
            calls = [{"index": i, **call.to_json()} for i, call in enumerate(choice.calls)]
            if calls:
                chunks.append(self._chunk(update.choice, {"tool_calls": calls}))
            chunks.append(self._chunk(update.choice, {}, finish=choice.finish))
        return chunks

    def _chunk(
        self, index: int, delta: dict[str, Any], picks: list[Pick] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        logprobs = chat_logprobs(self._loaded, picks) if self._logprobs and picks else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def whole(self) -> list[dict[str, Any]]:
        return [self._whole(index, self._choices[index]) for index in sorted(self._choices)]

    def _whole(self, index: int, choice: _PartialChatChoice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [call.to_json() for call in choice.calls]
        logprobs = chat_logprobs(self._loaded, choice.picks) if self._logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}


ENDPOINT = Endpoint(
    "chatcmpl-", "chat.completion", "chat.completion.chunk", chat_submissions, ChatWriter, lambda body: 1
)


@router.post("/v1/chat/completions", responses=answers(ChatCompletion, stream=True), tags=["openai"])
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation."""
    return await respond(request, body, ENDPOINT)
