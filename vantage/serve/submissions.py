"""From a request's fields to submissions for the engine. Runs in a thread: encoding and compiling take time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vantage.errors import VantageError
from vantage.generation import Constraint, Sampling, Stop
from vantage.generation.prompts import start_token
from vantage.generation.sampling import fork_constraint
from vantage.serve import tools
from vantage.serve.answer_formats import AnswerFormat, answer_format, constraint_of
from vantage.serve.engine_jobs import Submission
from vantage.serve.errors import ApiError, bad
from vantage.serve.image_parts import image_parts, read_images, with_images
from vantage.serve.model_pool import LoadedModel
from vantage.serve.requests import ChatRequest, CompletionRequest, Generates, Message

SOURCE_TOKENS = 512  # what an encoder-decoder says at most, unless told


def chat_submissions(loaded: LoadedModel, body: ChatRequest, tenant: str | None) -> list[Submission]:
    if body.top_logprobs is not None and not body.logprobs:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    limits = {one for one in (body.max_tokens, body.max_completion_tokens) if one is not None}
    if len(limits) > 1:
        raise bad("max_tokens and max_completion_tokens differ: give one of them", "max_completion_tokens")
    offered = tools.offered(body)
    images = read_images(loaded, body.messages)
    tokens = with_images(loaded, chat_tokens(loaded, body.messages, offered), images)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    wanted = answer_format(body, offered, tools.forced(body, offered))
    submissions = _submissions(loaded, body, [tokens], next(iter(limits), None), logprobs, wanted, tenant)
    return [replace(one, images=images) for one in submissions]


def completion_submissions(loaded: LoadedModel, body: CompletionRequest, tenant: str | None) -> list[Submission]:
    if body.max_tokens == 0 and not body.echo:
        raise bad(
            "max_tokens is 0, so there is no answer: give at least 1, or echo: true to score a prompt", "max_tokens"
        )
    if body.echo and loaded.model.encoder is not None:
        raise bad("echo: this model reads the prompt with an encoder, and an answer does not begin with it", "echo")
    rows = [_prompt(loaded, one) for one in prompts_of(body.prompt)]
    wanted = answer_format(body)
    submissions = _submissions(loaded, body, rows, body.max_tokens, body.logprobs, wanted, tenant)
    if not body.echo or (body.logprobs is None and body.max_tokens != 0):
        return submissions
    return [replace(one, prompt_logprobs=body.logprobs or 0) for one in submissions]


def prompts_of(limits: Any) -> list[str | list[int]]:
    """One prompt or several, each a text or tokens."""
    return [limits] if isinstance(limits, str) or isinstance(limits[0], int) else list(limits)


def chat_tokens(loaded: LoadedModel, messages: Sequence[Message], offered: list[dict[str, Any]]) -> list[int]:
    template = loaded.safe_tokenizer.tokenizer.template
    if template is None:
        raise bad(f"{loaded.name} has no chat template: use /v1/completions", "model", "no_chat_template")
    plain = [_message(message) for message in messages]
    if not tools.knows_tools(template):
        plain = tools.with_calls_in_words(plain)
        return loaded.safe_tokenizer.encode_chat(tools.with_tools_in_words(plain, offered) if offered else plain)
    return loaded.safe_tokenizer.encode_chat(plain, offered or None)


def _message(message: Message) -> dict[str, Any]:
    """As templates read it."""
    fields = message.model_dump(exclude_none=True)
    content = fields.get("content", "")
    if image_parts(message):
        fields["content"] = [{"type": "image"} if part["type"] == "image_url" else part for part in content]
    else:
        fields["content"] = content if isinstance(content, str) else "".join(part["text"] for part in content)
    fields["role"] = "system" if fields["role"] == "developer" else fields["role"]
    fields.pop("annotations", None)
    for call in fields.get("tool_calls", ()):
        function = call["function"]
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError) as e:
            raise bad(f"the arguments of the call {call['id']!r} are not JSON", "messages") from e
    return fields


def _prompt(loaded: LoadedModel, prompt: str | list[int]) -> list[int]:
    if not isinstance(prompt, str):
        vocab = loaded.model.spec.vocab
        if any(token >= vocab for token in prompt):
            raise bad(f"a token of the prompt is not in the vocabulary, which has 0 to {vocab - 1}", "prompt")
        return prompt
    tokens = loaded.safe_tokenizer.encode(prompt)
    if not tokens:
        begin = loaded.safe_tokenizer.tokenizer.bos
        if begin is None:
            raise bad("an empty prompt, and this model has no token to begin with: give some text", "prompt")
        return [begin]
    return tokens


def _submissions(
    loaded: LoadedModel,
    body: Generates,
    rows: Sequence[list[int]],
    max_tokens: int | None,
    logprobs: int | None,
    wanted: AnswerFormat | None,
    tenant: str | None,
) -> list[Submission]:
    try:
        sampling = _sampling(body, logprobs)
        constraint = constraint_of(loaded, wanted)
        strings = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        stop = Stop(strings, loaded.ends)
        most = [_most(loaded, len(row), max_tokens) for row in rows]
        held: list[Constraint | None] = [constraint, *(fork_constraint(constraint) for _ in rows[1:])]
        start = (start_token(loaded.model),) if loaded.model.encoder is not None else None
        return [
            Submission(
                tuple(row) if start is None else start,
                most[i],
                sampling,
                stop,
                body.n or 1,
                tenant,
                held[i],
                None if start is None else tuple(row),
                loaded.adapter,
            )
            for i, row in enumerate(rows)
        ]
    except ApiError:
        raise
    except VantageError as e:
        raise bad(str(e)) from e


def _sampling(body: Generates, logprobs: int | None) -> Sampling:
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty or 1.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias={int(token): value for token, value in (body.logit_bias or {}).items()},
        seed=body.seed,
        logprobs=logprobs,
    )


def _most(loaded: LoadedModel, prompt: int, max_tokens: int | None) -> int:
    """How many tokens may follow."""
    context = loaded.context
    assert context is not None, "a model that generates has one"
    encodes = loaded.model.encoder is not None
    used = 1 if encodes else prompt
    if prompt + (max_tokens != 0) > context or (max_tokens is not None and used + max_tokens > context):
        wanted = f"{prompt} in the prompt" + ("" if max_tokens is None else f" and {max_tokens} to come")
        raise bad(
            f"this model's context is {context} tokens, and {wanted} were requested: shorten one of them",
            "messages" if max_tokens is None else "max_tokens",
            "context_length_exceeded",
        )
    left = context - used
    if max_tokens is not None:
        return max_tokens
    return min(left, SOURCE_TOKENS) if encodes else left
