"""Schemas, patterns and choices, however they are spelled: one constraint, and one of them in a request."""

from __future__ import annotations

import json
import re

import openai
import pytest

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
ASK = [{"role": "user", "content": "hello"}]
CHOICES = ["red", "a (b) [c] {d} ^$.*+?|\\", "two\nlines", "世界"]
SPELLED = {
    "guided_json": [SCHEMA, json.dumps(SCHEMA)],
    "guided_regex": ["[0-9]{3}"],
    "guided_choice": [CHOICES, ["only"]],
    "regex": ["[0-9]{3}"],
    "response_format": [{"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}],
    "structured_outputs": [{"json": SCHEMA}, {"regex": "[0-9]{3}"}, {"choice": CHOICES}],
}


def fits(field: str, value, text: str) -> bool:
    kind = field if field != "structured_outputs" else next(iter(value))
    value = value if field != "structured_outputs" else value[kind]
    if "choice" in kind:
        return text in value
    if "regex" in kind:
        return re.fullmatch(value, text) is not None
    return isinstance(json.loads(text)["a"], bool)


@pytest.mark.sampled
@pytest.mark.parametrize("field", SPELLED)
def test_every_spelling_holds_chats_and_completions(small, field):
    client = small.client()
    for value in SPELLED[field]:
        options = {
            "model": "tiny",
            "max_tokens": 64,
            "temperature": 1.0,
            "n": 4,
            "seed": 3,
            "extra_body": {field: value},
        }
        chat = client.chat.completions.create(messages=ASK, **options)
        plain = client.completions.create(prompt="a", **options)
        texts = [choice.message.content for choice in chat.choices] + [choice.text for choice in plain.choices]
        assert all(fits(field, value, text) for text in texts), (field, value, texts)
        assert {choice.finish_reason for choice in (*chat.choices, *plain.choices)} == {"stop"}


def test_every_choice_can_come(small):
    """Also those with characters that mean something in a pattern."""
    for choice in CHOICES:
        got = small.client().completions.create(
            model="tiny", prompt="a", max_tokens=64, extra_body={"guided_choice": [choice]}
        )
        assert got.choices[0].text == choice


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_json", "guided_json and guided_regex"),
        ({"regex": "a", "structured_outputs": {"choice": ["a"]}}, "regex", "regex and structured_outputs.choice"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.json", "one of them"),
        ({"structured_outputs": {}}, "structured_outputs", "give json"),
        ({"guided_regex": "("}, "guided_regex", "cannot be used"),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"guided_choice": ["x" * 200] * 100}, "guided_choice", "characters"),
        ({"guided_choice": []}, "guided_choice", "at least 1 entry"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "not a field that is known here"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "not a field that is known here"),
    ],
)
def test_what_is_refused(small, body, param, words):
    with pytest.raises(openai.BadRequestError, match=re.escape(words)) as caught:
        small.client().chat.completions.create(model="tiny", messages=ASK, max_tokens=4, extra_body=body)
    assert caught.value.param == param


def test_formats_and_tools(small):
    tool = {"type": "function", "function": {"name": "f"}}
    for extra, choice in (({"guided_json": SCHEMA}, "auto"), ({"guided_choice": ["a"]}, "required")):
        with pytest.raises(openai.BadRequestError, match="one of them"):
            small.client().chat.completions.create(
                model="tiny", messages=ASK, tools=[tool], tool_choice=choice, max_tokens=4, extra_body=extra
            )
