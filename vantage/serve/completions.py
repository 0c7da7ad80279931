"""``POST /v1/completions``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from fastapi import APIRouter, Request, Response

from vantage.serve.generation_call import ChoiceUpdate, Endpoint, respond
from vantage.serve.logprobs import CompletionTokens
from vantage.serve.model_pool import LoadedModel
from vantage.serve.openapi import answers
from vantage.serve.requests import CompletionRequest
from vantage.serve.responses import Completion
from vantage.serve.submissions import completion_submissions, prompts_of

router = APIRouter()


@final
@dataclass
class _PartialCompletionChoice:
    tokens: CompletionTokens
    text: str = ""
    begun: bool = False
    finish: str | None = None


@final
class CompletionWriter:
    def __init__(self, loaded: LoadedModel, body: CompletionRequest):
        self._loaded, self._logprobs, self._n = loaded, body.logprobs is not None, body.n or 1
        self._echoed = prompts_of(body.prompt) if body.echo else []
        self._choices: dict[int, _PartialCompletionChoice] = {}

    def update(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        choice = self._choices.setdefault(update.choice, _PartialCompletionChoice(CompletionTokens(self._loaded.texts)))
        picks, parts, text = update.tokens.take(update.text), [], update.text
        if self._echoed and not choice.begun:
            prompt = self._echoed[update.choice // self._n]
            text = self._prompt_text(prompt) + text
            parts += [self._prompt_part(choice, prompt, update)] if self._logprobs else []
        parts += [choice.tokens.answer(picks)] if self._logprobs and picks else []
        choice.begun, choice.finish = True, update.finish
        choice.text += text
        logprobs = {name: [x for part in parts for x in part[name]] for name in parts[0]} if parts else None
        return [{"index": update.choice, "text": text, "logprobs": logprobs, "finish_reason": update.finish}]

    def _prompt_text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._loaded.safe_tokenizer.tokenizer.decode(prompt, special=True)

    def _prompt_part(
        self, choice: _PartialCompletionChoice, prompt: str | list[int], update: ChoiceUpdate
    ) -> dict[str, Any]:
        # a text spells no special token: those around it are the tokenizer's own, and not in the text
        hidden = self._loaded.safe_tokenizer.special if isinstance(prompt, str) else frozenset[int]()
        return choice.tokens.prompt(update.tokens.prompt, update.tokens.prompt_picks, hidden)

    def whole(self) -> list[dict[str, Any]]:
        return [self._whole(index, self._choices[index]) for index in sorted(self._choices)]

    def _whole(self, index: int, choice: _PartialCompletionChoice) -> dict[str, Any]:
        logprobs = choice.tokens.whole() if self._logprobs else None
        return {"index": index, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.finish}


ENDPOINT = Endpoint(
    "cmpl-",
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
