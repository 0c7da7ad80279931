"""``POST /v1/completions``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from fastapi import APIRouter, Request, Response

from vantage.generation import Pick
from vantage.serve.answer_text import completion_logprobs
from vantage.serve.generation_call import ChoiceUpdate, Endpoint, respond
from vantage.serve.model_pool import LoadedModel
from vantage.serve.openapi import answers
from vantage.serve.requests import CompletionRequest
from vantage.serve.responses import Completion
from vantage.serve.submissions import completion_submissions, prompts_of

router = APIRouter()


@final
@dataclass
class _Choice:
    text: str = ""
    said: int = 0  # characters of the tokens so far
    picks: list[Pick] = field(default_factory=list)
    finish: str | None = None


@final
class CompletionWriter:
    def __init__(self, loaded: LoadedModel, body: CompletionRequest):
        self._loaded, self._logprobs = loaded, body.logprobs is not None
        self._choices: dict[int, _Choice] = {}

    def news(self, said: ChoiceUpdate) -> list[dict[str, Any]]:
        choice = self._choices.setdefault(said.choice, _Choice())
        picks = said.voice.picks(said.text)
        choice.text += said.text
        choice.picks += picks
        choice.finish = said.finish
        logprobs = completion_logprobs(self._loaded, picks, choice.said) if self._logprobs and picks else None
        choice.said += sum(len(token) for token in logprobs["tokens"]) if logprobs else 0
        return [{"index": said.choice, "text": said.text, "logprobs": logprobs, "finish_reason": said.finish}]

    def whole(self) -> list[dict[str, Any]]:
        return [self._whole(index, self._choices[index]) for index in sorted(self._choices)]

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        logprobs = completion_logprobs(self._loaded, choice.picks, 0) if self._logprobs else None
        return {"index": index, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.finish}


KIND = Endpoint(
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
    return await respond(request, body, KIND)
