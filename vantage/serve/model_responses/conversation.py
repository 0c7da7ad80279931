"""From input items to the messages of a chat, and to the chat's request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from vantage.serve import bounds
from vantage.serve.errors import bad
from vantage.serve.model_responses.requests import (
    ChosenFunctionTool,
    FunctionCallItem,
    FunctionTool,
    InputItem,
    InputMessage,
    NamedSchema,
    ResponseRequest,
)
from vantage.serve.requests import (
    AsSchema,
    AssistantMessage,
    CalledFunction,
    ChatRequest,
    ChosenFunction,
    ChosenTool,
    Function,
    Message,
    ResponseFormat,
    Schema,
    SystemMessage,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)


def messages_of(items: str | Sequence[InputItem]) -> list[Message]:
    """A text is the user's; a call belongs to the assistant's message before it."""
    if isinstance(items, str):
        return [UserMessage(role="user", content=items)]
    messages: list[Message] = []
    for item in items:
        if isinstance(item, InputMessage):
            messages.append(_message(item))
        elif isinstance(item, FunctionCallItem):
            add_call(messages, item.call_id, item.name, item.arguments)
        else:
            messages.append(ToolMessage(role="tool", content=item.text, tool_call_id=item.call_id))
    return messages


def _message(item: InputMessage) -> Message:
    if item.role == "user":
        return UserMessage(role="user", content=item.text)
    if item.role == "assistant":
        return AssistantMessage(role="assistant", content=item.text)
    return SystemMessage(role=item.role, content=item.text)


def add_call(messages: list[Message], id: str, name: str, arguments: str) -> None:
    call = ToolCall(id=id, type="function", function=CalledFunction(name=name, arguments=arguments))
    last = messages[-1] if messages else None
    if isinstance(last, AssistantMessage):
        messages[-1] = last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]})
    else:
        messages.append(AssistantMessage(role="assistant", tool_calls=[call]))


def chat_request(body: ResponseRequest, messages: Iterable[Message]) -> ChatRequest:
    """The same wish, as a chat. Instructions hold for this request alone."""
    system = [] if body.instructions is None else [SystemMessage(role="system", content=body.instructions)]
    whole = [*system, *messages]
    if len(whole) > bounds.MESSAGES:
        raise bad(f"the conversation has {len(whole)} messages: {bounds.MESSAGES} is the most", "input")
    logprobs = bool(body.include) or body.top_logprobs is not None
    return ChatRequest(
        model=body.model,
        messages=whole,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        logprobs=logprobs or None,
        top_logprobs=(body.top_logprobs or 0) if logprobs else None,
        response_format=_format(body),
        tools=[_tool(tool) for tool in body.tools] if body.tools else None,
        tool_choice=_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        stream=body.stream,
        user=body.user,
    )


def _tool(tool: FunctionTool) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)
    return Tool(type="function", function=function)


def _choice(body: ResponseRequest) -> Literal["none", "auto", "required"] | ChosenTool | None:
    choice = body.tool_choice
    if isinstance(choice, ChosenFunctionTool):
        return ChosenTool(type="function", function=ChosenFunction(name=choice.name))
    return choice if body.tools else None  # clients say "auto" where there are no tools


def _format(body: ResponseRequest) -> ResponseFormat | None:
    wanted = None if body.text is None else body.text.format
    if isinstance(wanted, NamedSchema):
        fields = wanted.model_dump(by_alias=True, exclude={"type"})
        return AsSchema(type="json_schema", json_schema=Schema.model_validate(fields))
    return wanted
