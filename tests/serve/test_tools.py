"""Calls found in answers, however the text is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vantage.serve.errors import ApiError
from vantage.serve.requests import ChatRequest
from vantage.serve.tools import ToolParser, forced, knows_tools, offered, with_calls_in_words, with_tools_in_words

CALL = '{"name": "f", "arguments": {"x": "<b>"}}'
ANSWERS = {
    "plain text": ("plain text", []),
    f"<tool_call>\n{CALL}\n</tool_call>": ("", ["f"]),
    f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>": ("", ["f", "f"]),
    f"Let me see.<tool_call>{CALL}": ("Let me see.", ["f"]),
    f"  {CALL}": ("", ["f"]),
    f"[{CALL}, {CALL}]": ("", ["f", "f"]),
    '{"name": "f", "parameters": {}}': ("", ["f"]),
    '{"name": "g", "arguments": {}}': ('{"name": "g", "arguments": {}}', []),
    '{"name": ["f"]}': ('{"name": ["f"]}', []),
    "<tool_call>nonsense</tool_call>": ("<tool_call>nonsense</tool_call>", []),
    "a < b <tool": ("a < b <tool", []),
    "[1, 2": ("[1, 2", []),
    "": ("", []),
}


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 60), max_size=6))
def test_however_it_is_cut(answer, cuts):
    parser = ToolParser(["f"])
    at = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    shown = "".join(parser.push(answer[a:b]) for a, b in itertools.pairwise(at))
    rest, calls = parser.finish()
    text, names = ANSWERS[answer]
    assert shown + rest == text
    assert [call.name for call in calls] == names
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)


def test_text_is_shown_as_it_comes():
    parser = ToolParser(["f"])
    assert parser.push("Hello ") == "Hello "
    assert parser.push("wor<tool") == "wor"
    assert parser.push("box") == "<toolbox"


def test_one_call_where_one_is_wanted():
    parser = ToolParser(["f"], many=False)
    parser.push(f"[{CALL}, {CALL}]")
    assert len(parser.finish()[1]) == 1


def asked(**extra) -> ChatRequest:
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"]
    return ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools, **extra}
    )


def test_choices():
    names = lambda request: [tool["function"]["name"] for tool in offered(request)]  # noqa: E731
    assert names(asked()) == ["f", "g"]
    assert names(asked(tool_choice="none")) == []
    chosen = asked(tool_choice={"type": "function", "function": {"name": "g"}})
    assert names(chosen) == ["g"]
    assert forced(asked(), offered(asked())) is None
    both = forced(asked(tool_choice="required"), offered(asked()))
    assert both is not None
    assert [one["properties"]["name"]["const"] for one in both["anyOf"]] == ["f", "g"]
    unknown = {"tool_choice": {"type": "function", "function": {"name": "h"}}}
    for wrong in (unknown, {"tools": [], "tool_choice": "required"}):
        with pytest.raises(ApiError):
            offered(asked(**wrong))


def test_in_words():
    assert knows_tools("{% if tools %}x{% endif %}")
    assert not knows_tools("{{ messages }}")
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "x"}]
    said = with_tools_in_words(messages, offered(asked()))
    assert said[0]["content"].startswith("Be kind.")
    assert '"name": "g"' in said[0]["content"]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    (written,) = with_calls_in_words([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert ToolParserOf(written["content"]) == [("f", {"a": 1})]


def ToolParserOf(text: str) -> list[tuple[str, dict]]:
    parser = ToolParser(["f"])
    parser.push(text)
    return [(call.name, json.loads(call.arguments)) for call in parser.finish()[1]]
