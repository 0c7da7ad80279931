"""Tools: offered through the chat template, and found again in the answer."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from vantage.serve.errors import bad
from vantage.serve.requests import ChatRequest, ChosenTool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# For models whose template knows no tools: the words of the models that do.
SYSTEM = """You may call functions. These are their descriptions:
<tools>
{tools}
</tools>
To call one, answer with a JSON object of its name and arguments inside tool_call tags and nothing else:
<tool_call>
{{"name": "function name", "arguments": {{}}}}
</tool_call>"""


def offered(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools that may be called, as templates read them."""
    choice = request.tool_choice
    if choice is not None and not request.tools and choice != "none":
        raise bad("tool_choice without tools: offer some", "tool_choice")
    if not request.tools or choice == "none":
        return []
    names = [tool.function.name for tool in request.tools]
    if len(set(names)) < len(names):
        raise bad("two tools have the same name", "tools")
    if isinstance(choice, ChosenTool) and choice.function.name not in names:
        raise bad(f"tool_choice names {choice.function.name!r}, which is not among the tools", "tool_choice")
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools]
    for tool in tools:
        tool["function"].setdefault("parameters", {"type": "object", "properties": {}})
    return [
        tool for tool in tools if not isinstance(choice, ChosenTool) or tool["function"]["name"] == choice.function.name
    ]


def forced(request: ChatRequest, tools: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The schema of a call, where the answer must be one."""
    if not tools or request.tool_choice in (None, "auto"):
        return None
    defs: dict[str, Any] = {}
    calls = []
    for tool in tools:
        name, parameters = tool["function"]["name"], dict(tool["function"]["parameters"])
        for key in ("$defs", "definitions"):
            for inner, schema in dict(parameters.pop(key, None) or {}).items():
                defs[f"{name}.{inner}"] = _moved(schema, name)
        fields = {"name": {"const": name}, "arguments": _moved(parameters, name)}
        calls.append(
            {
                "type": "object",
                "properties": fields,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": defs} if defs else schema


def _moved(schema: Any, name: str) -> Any:
    """References that were to the root of the parameters, now that they stand inside another schema."""
    if isinstance(schema, dict):
        return {
            key: re.sub(r"^#/(\$defs|definitions)/", f"#/$defs/{name}.", value)
            if key == "$ref" and isinstance(value, str)
            else _moved(value, name)
            for key, value in schema.items()
        }
    return [_moved(one, name) for one in schema] if isinstance(schema, list) else schema


def knows_tools(template: str | None) -> bool:
    return template is not None and re.search(r"\btools\b", template) is not None


def with_tools_in_words(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the tools in words, for a template that does not know any."""
    words = SYSTEM.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{words}"}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def with_calls_in_words(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls that were made before, as the answers they were, for the same templates."""
    rewritten = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            written = [f"{OPEN}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CLOSE}" for call in calls]
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            message = {**rest, "content": "\n".join([message["content"], *written]).strip()}
        rewritten.append(message)
    return rewritten


# ---- finding them again


@final
@dataclass(frozen=True)
class ParsedCall:
    id: str
    name: str
    arguments: str  # JSON

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@final
class ToolParser:
    """The text of an answer as it comes: what is content may be shown, what may be a call is held back.

    Calls are JSON objects with ``name`` and ``arguments`` (or ``parameters``): between tags, or as the
    whole answer, one or a list of them. What is no call of an offered tool is content after all.
    """

    def __init__(self, names: Sequence[str], *, many: bool = True):
        self._names, self._many = frozenset(names), many
        self._held, self._state = "", "start"

    def push(self, text: str) -> str:
        """The content that is certain now."""
        self._held += text
        if self._state == "start":
            front = self._held.lstrip()
            if not front or OPEN.startswith(front):
                return ""
            self._state = "held" if front[0] in "{[" or front.startswith(OPEN) else "content"
        if self._state == "held":
            return ""
        at = self._held.find(OPEN)
        if at >= 0:
            shown, self._held, self._state = self._held[:at], self._held[at:], "held"
            return shown
        keep = next((k for k in range(len(OPEN) - 1, 0, -1) if self._held.endswith(OPEN[:k])), 0)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    def finish(self) -> tuple[str, list[ParsedCall]]:
        """What is left of the content, and the calls."""
        held, self._held = self._held, ""
        calls = self._calls(held)
        if not calls:
            return held, []
        return "", calls if self._many else calls[:1]

    def _calls(self, text: str) -> list[ParsedCall]:
        tagged = re.findall(f"{OPEN}(.*?)(?:{CLOSE}|$)", text, re.DOTALL)
        calls: list[ParsedCall] = []
        for part in tagged or [text]:
            try:
                read = json.loads(part)
            except (ValueError, RecursionError):
                return []
            for one in read if isinstance(read, list) else [read]:
                call = self._call(one)
                if call is None:
                    return []
                calls.append(call)
        return calls

    def _call(self, read: Any) -> ParsedCall | None:
        if not isinstance(read, dict) or not isinstance(read.get("name"), str) or read["name"] not in self._names:
            return None
        arguments = read.get("arguments", read.get("parameters", {}))
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return ParsedCall(f"call_{secrets.token_hex(12)}", read["name"], written)
