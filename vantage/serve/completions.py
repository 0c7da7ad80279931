"""``POST /v1/completions``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from fastapi import APIRouter, Request, Response

from vantage.generation import Pick
from vantage.serve.generation_call import ChoiceUpdate, Endpoint, respond
from vantage.serve.logprobs import completion_logprobs
from vantage.serve.model_pool import LoadedModel
from vantage.serve.openapi import answers
from vantage.serve.requests import CompletionRequest
from vantage.serve.responses import Completion
from vantage.serve.submissions import completion_submissions, prompts_of

router = APIRouter()


@final
@dataclass
class _PartialCompletionChoice:
    text: str = ""
    offset: int = 0  # characters of the tokens so far
    picks: list[Pick] = field(default_factory=list)
    finish: str | None = None


@final
class CompletionWriter:
    def __init__(self, loaded: LoadedModel, body: CompletionRequest):
        self._loaded, self._logprobs = loaded, body.logprobs is not None
        self._choices: dict[int, _PartialCompletionChoice] = {}

    def update(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        choice = self._choices.setdefault(update.choice, _PartialCompletionChoice())
        picks = update.tokens.take(update.text)
        choice.text += update.text
        choice.picks += picks
        choice.finish = update.finish
        logprobs = completion_logprobs(self._loaded, picks, choice.offset) if self._logprobs and picks else None
        choice.offset += sum(len(token) for token in logprobs["tokens"]) if logprobs else 0
        return [{"index": update.choice, "text": update.text, "logprobs": logprobs, "finish_reason": update.finish}]

    def whole(self) -> list[dict[str, Any]]:
        return [self._whole(index, self._choices[index]) for index in sorted(self._choices)]

    def _whole(self, index: int, choice: _PartialCompletionChoice) -> dict[str, Any]:
        logprobs = completion_logprobs(self._loaded, choice.picks, 0) if self._logprobs else None
        return {"index": index, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.finish}


ENDPOINT = Endpoint(
    "cmpl",
    "text_completion",
    "text_completion",
    completion_submissions,
    CompletionWriter,
    lambda body: len(prompts_of(body.prompt)),
)


@router.post("/v1/completions", responses=answers(Completion, stream=True), tags=["openai"])
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Go on from a text or from tokens."""
    return await respond(request, body, ENDPOINT)
