"""Every field of every request, with every kind of wrong value: what comes back is a sentence about that field."""

from __future__ import annotations

import json
import re

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError

import vantage.serve.model_responses.requests as responses_requests
import vantage.serve.model_responses.routes as responses_routes
import vantage.serve.requests as requests
from vantage.serve import attention, chat, completions, embeddings, status, text
from vantage.serve.validation import explain

WRONG = [None, True, -1, 2**70, 1.5, 1e30, "", "wrong-word", "x" * 600, [], [[]], [None], ["x"] * 2000, {}, {"x": {}}]
GOOD = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"model": "tiny", "prompt": "a"},
    "/v1/responses": {"model": "tiny", "input": "a"},
    "/v1/embeddings": {"model": "tiny", "input": "a"},
    "/v1/attention": {"id": "a"},
    "/tokenize": {"model": "tiny", "prompt": "a"},
    "/detokenize": {"model": "tiny", "tokens": [1]},
}
# inside objects and lists: where, with which body around it
NESTED = {
    "/v1/chat/completions": {
        "messages.0.role": {"messages": [{"role": ..., "content": "a"}]},
        "messages.0.content": {"messages": [{"role": "user", "content": ...}]},
        "messages.0.content.0.type": {"messages": [{"role": "user", "content": [{"type": ..., "text": "a"}]}]},
        "messages.0.content.0.text": {"messages": [{"role": "user", "content": [{"type": "text", "text": ...}]}]},
        "messages.0.name": {"messages": [{"role": "user", "content": "a", "name": ...}]},
        "messages.0.tool_calls": {"messages": [{"role": "assistant", "tool_calls": ...}]},
        "messages.0.tool_calls.0.id": {"messages": [{"role": "assistant", "tool_calls": [{"id": ...}]}]},
        "tools.0.function.parameters": {"tools": [{"type": "function", "function": {"name": "a", "parameters": ...}}]},
        "tools.0.type": {"tools": [{"type": ..., "function": {"name": "a"}}]},
        "tool_choice.function.name": {"tool_choice": {"type": "function", "function": {"name": ...}}},
        "response_format.type": {"response_format": {"type": ...}},
        "response_format.json_schema.name": {"response_format": {"type": "json_schema", "json_schema": {"name": ...}}},
        "stop.1": {"stop": ["a", ...]},
        "logit_bias.7": {"logit_bias": {"7": ...}},
        "stream_options.include_usage": {"stream_options": {"include_usage": ...}},
        "structured_outputs.regex": {"structured_outputs": {"regex": ...}},
    },
    "/v1/completions": {"prompt.0": {"prompt": [...]}, "guided_choice.0": {"guided_choice": [...]}},
    "/v1/responses": {
        "input.0.role": {"input": [{"role": ..., "content": "a"}]},
        "input.0.type": {"input": [{"type": ..., "role": "user", "content": "a"}]},
        "input.0.content.0.text": {"input": [{"role": "user", "content": [{"type": "input_text", "text": ...}]}]},
        "input.0.call_id": {"input": [{"type": "function_call_output", "call_id": ..., "output": "a"}]},
        "text.format.type": {"text": {"format": {"type": ...}}},
        "tools.0.name": {"tools": [{"type": "function", "name": ...}]},
        "metadata.a": {"metadata": {"a": ...}},
    },
}

PYDANTIC = re.compile(
    r"constrained|Input should|Field required|valid (string|integer|number|list|dictionary|boolean)|Extra inputs|"
    r"validation|pydantic|function-|literal\[|tagged-union|union_tag|model_type|\b(str|int|dict|bool|float|NoneType)\b|"
    r"\bstring\b|dictionary|Value error|\[key\]|list\[|\.\.\."
)
CLASSES = re.compile(
    r"\b("
    + "|".join(
        name
        for module in (requests, responses_requests)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseModel) and name not in ("Tool", "Function", "Message")
    )
    + r")\b"
)


@pytest.fixture(scope="module")
def routes():
    """The model of every body, by route."""
    parts = (attention, chat, completions, embeddings, responses_routes, status, text)
    routes = [route for part in parts for route in part.router.routes if isinstance(route, APIRoute)]
    return {route.path: route.body_field.field_info.annotation for route in routes if "POST" in route.methods}


def test_every_route_is_walked(small, routes):
    with small.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
    assert set(routes) == set(GOOD) == {path for path, methods in paths.items() if "post" in methods}


def refused(model: type[BaseModel], body) -> dict | None:
    """What a route with this body says, without the way there: tens of thousands of requests would take too long."""
    body = json.loads(json.dumps(body))
    try:
        TypeAdapter(model).validate_python(body, from_attributes=True)  # as FastAPI does it
    except ValidationError as e:
        errors = [{**error, "loc": ("body", *error["loc"])} for error in e.errors(include_url=False)]
        return explain(errors, body, model.model_fields).body()["error"]
    return None


def answered(small, route: str, body) -> dict:
    with small.http() as http:
        answer = http.post(route, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    return answer.json()["error"]


def check(error: dict, field: str, value) -> None:
    message = error["message"]
    plain = re.sub(r"'[^']*'", "''", message)  # values of ours may be called float
    assert not PYDANTIC.search(plain), message
    assert not CLASSES.search(plain), message
    assert (error["param"] or "").split(".")[0] == field.split(".")[0], (field, value, error)
    assert field.split(".")[0] in message, (field, value, error)
    if " is missing" not in message and "and must be" in message:
        given = message.split(", and must be ")[0].removeprefix(f"{error['param']} is ")
        assert given, message


def filled(template, value):
    if template is ...:
        return value
    if isinstance(template, dict):
        return {key: filled(one, value) for key, one in template.items()}
    return [filled(one, value) for one in template] if isinstance(template, list) else template


@pytest.mark.parametrize("route", GOOD)
def test_every_field_with_every_wrong_value(routes, route):
    model, refusals = routes[route], 0
    assert refused(model, GOOD[route]) is None
    for name, about in model.model_fields.items():
        field = about.alias or name
        for value in WRONG:
            error = refused(model, {**GOOD[route], field: value})
            if error is not None:
                check(error, field, value)
                refusals += 1
        if about.is_required():
            error = refused(model, {k: v for k, v in GOOD[route].items() if k != field})
            assert error["message"] == f"{field} is missing, and must be given"
            assert error["param"] == field
    assert refusals > 5 * len(model.model_fields)


@pytest.mark.parametrize(("route", "field", "template"), [(r, *one) for r in NESTED for one in NESTED[r].items()])
def test_fields_inside_fields(routes, route, field, template):
    exact = 0
    for value in WRONG:
        error = refused(routes[route], {**GOOD[route], **filled(template, value)})
        if error is not None:
            check(error, field, value)
            exact += error["param"] == field
    assert exact > 3, field  # nearly always the very place is named


def sentence(small, body, route="/v1/chat/completions") -> str:
    return answered(small, route, {**GOOD[route], **body})["message"]


def test_how_they_read(small):
    say = [
        ({"temperature": 3}, "temperature is 3, and must be at most 2"),
        ({"temperature": "hot"}, "temperature is a text of 3 characters, and must be a number"),
        ({"top_p": 0}, "top_p is 0, and must be more than 0"),
        ({"n": 0}, "n is 0, and must be at least 1"),
        ({"n": 1.5}, "n is 1.5, and must be a whole number"),
        ({"stream": "yes"}, "stream is a text of 3 characters, and must be true or false"),
        ({"stop": 5}, "stop is 5, and must be text or a list"),
        ({"stop": ["a"] * 5}, "stop is a list of 5 entries, and must be text or a list of at most 4 entries"),
        ({"stop": ["a", 1]}, "stop.1 is 1, and must be text"),
        ({"messages": []}, "messages is empty, and must have at least 1 entry"),
        ({"messages": "hi"}, "messages is a text of 2 characters, and must be a list"),
        ({"messages": ["hi"]}, "messages.0 is a text of 2 characters, and must be an object"),
        (
            {"messages": [{"role": "root", "content": "a"}]},
            "messages.0.role is 'root', and must be 'system' or 'developer' or 'user' or 'assistant' or 'tool'",
        ),
        ({"messages": [{"content": "a"}]}, "messages.0.role is missing, and must be given"),
        ({"messages": [{"role": "user"}]}, "messages.0.content is missing, and must be given"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content is 5, and must be text or a list"),
        ({"messages": [{"role": "user", "user": 1}]}, "messages.0.content is missing, and must be given"),
        ({"audio": {}}, "audio is an empty object, and must be null"),
        ({"store": True}, "store is true, and must be false"),
        (
            {"logit_bias": {"x": 1}},
            "logit_bias.x is a text of 1 character, and must be the number of a token, in digits",
        ),
        ({"logit_bias": {"1": 101}}, "logit_bias.1 is 101, and must be at most 100"),
        ({"temprature": 1}, "temprature is not a field that is known here. Did you mean 'temperature'?"),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages.0.x is not a field that is known here."),
        ({"tool_choice": "some"}, "tool_choice is 'some', and must be 'none', 'auto' or 'required' or an object"),
        ({"verbosity": "high"}, "verbosity is 'high', and must be 'medium'"),
        ({"model": ""}, "model is empty, and must have at least 1 character"),
        ({"model": "x" * 300}, "model has 300 characters, and must have at most 256"),
        ({"max_tokens": 2000000}, "max_tokens is 2,000,000, and must be at most 1,048,576"),
        (
            {"messages": [{"role": "user", "content": ""}] * 1025},
            "messages has 1,025 entries, and must have at most 1,024",
        ),
        ({"seed": 2**70}, "seed is 1,180,591,620,717,411,303,424, and must be less than 9,223,372,036,854,775,808"),
        ({"metadata": {"a": "b"}}, "metadata has 1 field, and must be empty"),
    ]
    assert [sentence(small, body) for body, _ in say] == [wanted for _, wanted in say]
    assert sentence(small, {"keep": "all", "id": "x"}, "/v1/attention").endswith("'top1' to 'top999'")


def test_bodies_that_are_no_object(small):
    for body, wanted in (
        ([], "the body is an empty list, and must be an object"),
        ("x", "the body is a text of 1 character, and must be an object"),
        (None, "the body is null, and must be an object"),
    ):
        assert answered(small, "/v1/completions", body)["message"] == wanted
    with small.http() as http:
        assert http.post("/v1/completions").json()["error"]["message"] == "the body is missing, and must be given"


def test_an_error_that_nobody_has_met_is_still_a_sentence():
    error = {"type": "from_the_future", "loc": ("body", "n"), "msg": "Input should be new", "input": 5}
    assert explain([error], {"n": 5}).message == "n is 5, and must be another value"
