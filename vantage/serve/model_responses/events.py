"""An answer as items and events: a message that grows, then calls of functions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, final

from vantage.serve.errors import ApiError
from vantage.serve.model_responses.requests import ResponseRequest

Event = dict[str, Any]


@final
class ResponseWriter:
    """Takes the chunks of a chat's one choice. What each brings is a list of events, numbered in order."""

    def __init__(self, id: str, created: int, body: ResponseRequest):
        self.id, self._created, self._body = id, created, body
        self.output: list[dict[str, Any]] = []
        self.status, self.usage, self.error = "in_progress", None, None
        self._open: dict[str, Any] | None = None  # the message that is being written
        self._number = 0

    def begin(self) -> list[Event]:
        return [self._event(f"response.{state}", response=self.response()) for state in ("created", "in_progress")]

    def take(self, chunk: Mapping[str, Any]) -> list[Event]:
        """A chunk of a chat: text, calls, or the end."""
        delta, events = chunk["delta"], list[Event]()
        logprobs = (chunk["logprobs"] or {}).get("content", [])
        if delta.get("content") or logprobs:
            events += self._text(delta.get("content") or "", logprobs)
        for call in delta.get("tool_calls", ()):
            events += [*self._close("completed"), *self._call(call)]
        if chunk["finish_reason"] is not None:
            events += self._finish(chunk["finish_reason"])
        return events

    def end(self, usage: Mapping[str, Any]) -> list[Event]:
        """After the last chunk."""
        self.usage = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        return [self._event(f"response.{self.status}", response=self.response())]

    def fail(self, error: ApiError) -> list[Event]:
        self.status, self.error = "failed", {"code": error.code, "message": error.message}
        return [self._event("response.failed", response=self.response())]

    def response(self) -> dict[str, Any]:
        """As far as it has come."""
        body = self._body
        cut = {"reason": "max_output_tokens"} if self.status == "incomplete" else None
        form = None if body.text is None or body.text.format is None else body.text.format
        choice = body.tool_choice
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": self.status,
            "background": False,
            "error": self.error,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": dict(body.metadata or {}),
            "model": body.model,
            "output": [*self.output],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"} if form is None else form.model_dump(exclude_none=True, by_alias=True)},
            "tool_choice": "auto" if choice is None else choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": self.usage,
            "user": body.user,
        }

    # ---- items

    def _text(self, text: str, logprobs: Sequence[dict[str, Any]]) -> list[Event]:
        events = [] if self._open is not None else self._begin_message()
        assert self._open is not None, "opened above"
        part = self._open["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        return [*events, self._part_event("response.output_text.delta", delta=text, logprobs=logprobs)]

    def _begin_message(self) -> list[Event]:
        item = {"type": "message", "id": f"msg_{secrets.token_hex(12)}", "status": "in_progress", "role": "assistant"}
        self._open = {**item, "content": [_part()]}
        self.output.append(self._open)
        added = self._event("response.output_item.added", output_index=self._index, item={**item, "content": []})
        return [added, self._part_event("response.content_part.added", part=_part())]

    def _close(self, status: str) -> list[Event]:
        """The end of the message, if one is open."""
        if self._open is None:
            return []
        self._open["status"], part = status, self._open["content"][0]
        events = [
            self._part_event("response.output_text.done", text=part["text"], logprobs=part["logprobs"]),
            self._part_event("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=self._index, item=self._open),
        ]
        self._open = None
        return events

    def _call(self, call: Mapping[str, Any]) -> list[Event]:
        """A call comes whole: only at its end is it known to be one."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        item = {"type": "function_call", "id": f"fc_{secrets.token_hex(12)}", "call_id": call["id"], "name": name}
        done = {**item, "status": "completed", "arguments": arguments}
        self.output.append(done)
        place = {"item_id": item["id"], "output_index": self._index}
        begun = {**item, "status": "in_progress", "arguments": ""}
        return [
            self._event("response.output_item.added", output_index=self._index, item=begun),
            self._event("response.function_call_arguments.delta", **place, delta=arguments),
            self._event("response.function_call_arguments.done", **place, name=name, arguments=arguments),
            self._event("response.output_item.done", output_index=self._index, item=done),
        ]

    def _finish(self, reason: str) -> list[Event]:
        self.status = "incomplete" if reason == "length" else "completed"
        events = [] if self.output else self._begin_message()  # an answer without a word is an empty message
        return [*events, *self._close(self.status)]

    # ---- events

    @property
    def _index(self) -> int:
        return len(self.output) - 1

    def _part_event(self, kind: str, **fields: Any) -> Event:
        assert self._open is not None, "a part belongs to a message"
        return self._event(kind, item_id=self._open["id"], output_index=self._index, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


def _part() -> dict[str, Any]:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def written(events: Sequence[Event]) -> str:
    """As server-sent events."""
    lines = ((event["type"], json.dumps(event, ensure_ascii=False, separators=(",", ":"))) for event in events)
    return "".join(f"event: {kind}\ndata: {data}\n\n" for kind, data in lines)
