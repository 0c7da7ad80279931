"""From a request's fields to submissions for the engine. Runs in a thread: encoding and compiling take time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from vantage.errors import BadInput, VantageError
from vantage.generation import Constraint, Sampling, Stop, constrain
from vantage.generation.prompts import start_token
from vantage.generation.sampling import fork_constraint
from vantage.serve import tools
from vantage.serve.engine_jobs import Submission
from vantage.serve.errors import ApiError, bad
from vantage.serve.model_pool import LoadedModel
from vantage.serve.requests import AsSchema, AsText, ChatRequest, CompletionRequest, Generates, Message

SOURCE_TOKENS = 512  # what an encoder-decoder says at most, unless told


def chat_submissions(loaded: LoadedModel, body: ChatRequest, tenant: str | None) -> list[Submission]:
    if body.top_logprobs is not None and not body.logprobs:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    limits = {one for one in (body.max_tokens, body.max_completion_tokens) if one is not None}
    if len(limits) > 1:
        raise bad("max_tokens and max_completion_tokens differ: give one of them", "max_completion_tokens")
    offered = tools.offered(body)
    tokens = chat_tokens(loaded, body.messages, offered)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _submissions(loaded, body, [tokens], next(iter(limits), None), logprobs, _schema(body, offered), tenant)


def completion_submissions(loaded: LoadedModel, body: CompletionRequest, tenant: str | None) -> list[Submission]:
    rows = [_prompt(loaded, one) for one in prompts_of(body.prompt)]
    return _submissions(loaded, body, rows, body.max_tokens, body.logprobs, None, tenant)


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


def _schema(body: ChatRequest, offered: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the answer must be, as a JSON schema."""
    wanted = body.response_format
    formatted = None
    if isinstance(wanted, AsSchema):
        formatted = wanted.json_schema.schema_
    elif wanted is not None and not isinstance(wanted, AsText):
        formatted = {"type": "object"}
    if formatted is not None and offered:
        raise bad("response_format and tools: an answer can be held to one of them", "response_format")
    return formatted if formatted is not None else tools.forced(body, offered)


def _submissions(
    loaded: LoadedModel,
    body: Generates,
    rows: Sequence[list[int]],
    max_tokens: int | None,
    logprobs: int | None,
    schema: dict[str, Any] | None,
    tenant: str | None,
) -> list[Submission]:
    try:
        sampling = _sampling(body, logprobs)
        constraint = _constraint(loaded, schema, body.regex)
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


def _constraint(loaded: LoadedModel, schema: dict[str, Any] | None, regex: str | None) -> Constraint | None:
    if schema is not None and regex is not None:
        raise bad("a regex and a schema: an answer can be held to one of them", "regex")
    tokenizer, ends = loaded.safe_tokenizer.tokenizer, sorted(loaded.ends)
    try:
        if schema is not None:
            return constrain.json_schema(schema, tokenizer, ends=ends)
        return None if regex is None else constrain.regex(regex, tokenizer, ends=ends)
    except BadInput as e:
        raise bad(str(e), "regex" if schema is None else "response_format", "invalid_grammar") from e


def _most(loaded: LoadedModel, prompt: int, max_tokens: int | None) -> int:
    """How many tokens may follow."""
    context = loaded.context
    assert context is not None, "a model that generates has one"
    encodes = loaded.model.encoder is not None
    used = 1 if encodes else prompt
    if prompt >= context or (max_tokens is not None and used + max_tokens > context):
        wanted = f"{prompt} in the prompt" + ("" if max_tokens is None else f" and {max_tokens} to come")
        raise bad(
            f"this model's context is {context} tokens, and {wanted} were asked for: shorten one of them",
            "messages" if max_tokens is None else "max_tokens",
            "context_length_exceeded",
        )
    left = context - used
    return max_tokens or (min(left, SOURCE_TOKENS) if encodes else left)
