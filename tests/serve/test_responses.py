"""/v1/responses with the official client: whole and streamed, gone on from, held to a schema, with tools."""

from __future__ import annotations

import json

import openai
import pytest
from pydantic import BaseModel

from tests.generation.folder import chat_model
from tests.serve.running import serving, tiny
from vantage.serve.errors import ApiError
from vantage.serve.model_responses.stored import StoredResponses
from vantage.serve.requests import UserMessage

ASK = {"model": "tiny", "temperature": 0, "max_output_tokens": 8}
TOOL = {
    "type": "function",
    "name": "look_up",
    "description": "Looks a word up",
    "parameters": {"type": "object", "properties": {"big": {"type": "boolean"}}, "required": ["big"]},
}


def chat(client: openai.OpenAI, messages: list[dict], **options) -> str:
    options = {"model": "tiny", "temperature": 0, "max_tokens": 8, **options}
    return client.chat.completions.create(messages=messages, **options).choices[0].message.content


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def test_equal_to_the_chat_of_the_same_words(small):
    client = small.client()
    wanted = chat(client, [user("hello")])
    got = client.responses.create(input="hello", **ASK)
    assert got.output_text == wanted
    assert got.object == "response"
    assert got.id.startswith("resp_")
    assert (got.status, got.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    (message,) = got.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")
    assert got.usage.output_tokens == 8
    assert got.usage.input_tokens + 8 == got.usage.total_tokens
    again = client.responses.create(
        input=[{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}], **ASK
    )
    assert again.output_text == wanted
    assert again.usage.input_tokens_details.cached_tokens > 0
    told = client.responses.create(input="hello", instructions="Be kind", metadata={"a": "b"}, user="me", **ASK)
    assert told.output_text == chat(client, [{"role": "system", "content": "Be kind"}, user("hello")])
    assert (told.instructions, told.metadata, told.user) == ("Be kind", {"a": "b"}, "me")
    developer = client.responses.create(input=[{"role": "developer", "content": "Be kind"}, user("hello")], **ASK)
    assert developer.output_text == told.output_text


def test_an_answer_that_ends_by_itself_is_complete(small):
    form = {"format": {"type": "json_schema", "name": "a", "schema": {"enum": ["yes"]}}}
    got = small.client().responses.create(input="hello", text=form, **ASK)
    assert json.loads(got.output_text) == "yes"
    assert (got.status, got.incomplete_details) == ("completed", None)


def test_streamed_events(small):
    client = small.client()
    wanted = client.responses.create(input="hello", **ASK)
    events = list(client.responses.create(input="hello", stream=True, **ASK))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 1
    assert [kind for kind in kinds if kind != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == wanted.output_text
    last = events[-1].response
    assert last.output_text == wanted.output_text
    assert last.usage.output_tokens == 8
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1


def test_the_stream_helper_and_parsed_answers(small):
    class Size(BaseModel):
        big: bool

    client = small.client()
    options = {**ASK, "max_output_tokens": 64}
    with client.responses.stream(input="hello", text_format=Size, **options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Size)
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds
    parsed = client.responses.parse(input="hello", text_format=Size, **options)
    assert parsed.output_parsed == final.output_parsed


def test_going_on_from_a_response(small):
    client = small.client()
    first = client.responses.create(input="hello", instructions="Be kind", **ASK)
    second = client.responses.create(input="and now?", previous_response_id=first.id, **ASK)
    said = [user("hello"), {"role": "assistant", "content": first.output_text}, user("and now?")]
    assert second.output_text == chat(client, said)  # instructions are for one request
    assert second.previous_response_id == first.id
    third = client.responses.create(input="more", previous_response_id=second.id, **ASK)
    said += [{"role": "assistant", "content": second.output_text}, user("more")]
    assert third.output_text == chat(client, said)
    by_hand = client.responses.create(
        input=[user("hello"), *first.output, user("and now?")], **ASK
    )  # what was answered can be given back as it is
    assert by_hand.output_text == second.output_text
    streamed = list(client.responses.create(input="and now?", previous_response_id=first.id, stream=True, **ASK))
    assert streamed[-1].response.output_text == second.output_text
    after = client.responses.create(input="more", previous_response_id=streamed[-1].response.id, **ASK)
    assert after.output_text == third.output_text


def test_retrieved_deleted_and_never_of_another_key(small):
    client = small.client()
    kept = client.responses.create(input="hello", **ASK)
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    for other in (lambda id: small.client("another-key").responses.retrieve(id),):
        with pytest.raises(openai.NotFoundError):
            other(kept.id)
    with pytest.raises(openai.NotFoundError) as caught:
        small.client("another-key").responses.create(input="a", previous_response_id=kept.id, **ASK)
    assert caught.value.param == "previous_response_id"
    client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)
    unkept = client.responses.create(input="hello", store=False, **ASK)
    with pytest.raises(openai.NotFoundError, match="store: false"):
        client.responses.create(input="a", previous_response_id=unkept.id, **ASK)


@pytest.fixture(scope="module")
def roomy(folder):
    """Tools take hundreds of tokens."""
    with serving(folder, f"tiny={tiny(folder)}", "--capacity", "2048") as it:
        yield it


@pytest.mark.sampled
@pytest.mark.parametrize("stream", [False, True])
def test_tools(roomy, stream):
    client = roomy.client()
    options = {**ASK, "max_output_tokens": 90, "tools": [TOOL], "tool_choice": {"type": "function", "name": "look_up"}}
    if stream:
        events = list(client.responses.create(input="hello", stream=True, **options))
        got = events[-1].response
        kinds = [event.type for event in events]
        assert "response.function_call_arguments.delta" in kinds
        done = next(event for event in events if event.type == "response.function_call_arguments.done")
        assert done.arguments == got.output[0].arguments
    else:
        got = client.responses.create(input="hello", **options)
    (call,) = got.output
    assert (call.type, call.name, call.status, got.status) == ("function_call", "look_up", "completed", "completed")
    assert isinstance(json.loads(call.arguments)["big"], bool)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a cat"}
    after = client.responses.create(input=[result], previous_response_id=got.id, tools=[TOOL], **ASK)
    assert after.status in ("completed", "incomplete")
    whole = client.responses.create(input=[user("hello"), call, result], tools=[TOOL], **ASK)
    assert whole.output_text == after.output_text


def test_logprobs(small):
    got = small.client().responses.create(
        input="hello", include=["message.output_text.logprobs"], top_logprobs=2, **ASK
    )
    (part,) = got.output[0].content
    assert "".join(one.token for one in part.logprobs) == part.text
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input.0.type"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"temprature": 1}, "temprature"),
        ({"previous_response_id": "resp_never"}, "previous_response_id"),
    ],
)
def test_what_is_refused(small, body, param):
    with small.http() as http:
        answer = http.post("/v1/responses", json={"model": "tiny", "input": "a", **body})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


@pytest.mark.sampled
def test_a_stream_that_fails_in_its_middle_says_so(folder):
    control, long = folder / "responses-fault", {"type": "string", "minLength": 200}
    ask = {"model": "tiny", "input": "hello", "max_output_tokens": 400, "stream": True}
    ask["text"] = {"format": {"type": "json_schema", "name": "long", "schema": long}}
    kinds, last = [], {}
    with (
        serving(folder, f"tiny={tiny(folder)}", module="tests.serve.faulty", env={"FAULTS": str(control)}) as server,
        server.http(None) as http,
        http.stream("POST", "/v1/responses", json=ask) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("data: "):
                last = json.loads(line[6:])
                kinds.append(last["type"])
                if len(kinds) == 5:
                    control.write_text("step")
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "step_failed"
    assert "secret" not in json.dumps(last)


def test_few_are_kept_and_no_more_than_so_many_bytes():
    def put(kept: StoredResponses, tenant: str, id: str, text: str = "a") -> None:
        kept.put(tenant, {"id": id}, [UserMessage(role="user", content=text)])

    kept = StoredResponses(3, 4096)
    for i in range(5):
        put(kept, "a", f"r{i}")
    put(kept, "b", "other")
    assert [key for _, key in kept._kept] == ["r2", "r3", "r4", "other"]
    kept.get("a", "r2", param="id")
    put(kept, "a", "r5")  # r3 is the least recently used of its key
    assert [key for _, key in kept._kept] == ["r4", "other", "r2", "r5"]
    put(kept, "a", "large", "x" * 4000)
    assert [key for _, key in kept._kept] == ["large"]
    assert kept.bytes <= 4096
    put(kept, "a", "larger", "x" * 5000)
    with pytest.raises(ApiError):
        kept.get("a", "larger", param="id")
    none = StoredResponses(0)
    put(none, "a", "r")
    assert len(none) == 0


@pytest.mark.sampled
def test_a_model_without_a_template_says_so(folder):
    import vantage as vt

    path = folder / "untemplated"
    if not path.exists():
        vt.save(chat_model(template=None), path)
    with serving(folder, f"tiny={path}", "--capacity", "64") as server, server.http(None) as http:
        answer = http.post("/v1/responses", json={"model": "tiny", "input": "a"})
        assert answer.json()["error"]["code"] == "no_chat_template"
