"""``POST /v1/attention``: a finished request, by its id, by whoever asked it."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.processes import PATIENCE, until
from tests.serve.running import KEY, tiny
from tests.serve.studios import served
from vantage.model.shared_copy import copy_sharing_weights
from vantage.serve import Limits
from vantage.serve.finished_requests import FinishedChoice, FinishedRequest, FinishedRequests

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "the cat sat"}], "max_tokens": 5, "temperature": 0}


@pytest.fixture(scope="module")
def model(folder):
    return vt.load(tiny(folder))


def ask(server, id: str, key: str | None = KEY, **more):
    with server.http(key) as http:
        return http.post("/v1/attention", json={"id": id, **more})


def asked(server, body: dict, path: str = "/v1/chat/completions", key: str | None = KEY) -> dict:
    with server.http(key) as http:
        return http.post(path, json=body).raise_for_status().json()


def code(answer) -> str:
    return answer.json()["error"]["code"]


def text_of(answer: dict, choice: int = 0) -> str:
    return answer["choices"][choice]["message"]["content"]


def tokens_of(server, model, answer: dict, choice: int = 0) -> list[int]:
    """Prompt and answer. Greedy, so the library says the same tokens."""
    made = vt.generate(model, CHAT["messages"], max_tokens=5)
    assert made.text == text_of(answer, choice)
    return [*made.prompt, *made.tokens]


def test_weights_are_what_capture_says(small, model):
    answer = asked(small, CHAT)
    tokens = tokens_of(small, model, answer)
    kept = vt.capture(model, tokens)
    told = ask(small, answer["id"], keep="weights").raise_for_status().json()
    assert (told["id"], told["object"], told["model"], told["choice"]) == (answer["id"], "attention", "tiny", 0)
    assert told["prompt_tokens"] == len(tokens) - 5 == answer["usage"]["prompt_tokens"]
    assert told["tokens"] == kept.tokens()
    assert [(one["kind"], one["layer"]) for one in told["attention"]] == kept.sites
    for one in told["attention"]:
        np.testing.assert_allclose(one["weights"], kept.weights(one["layer"]).numpy(), atol=1e-5)
        assert one["queries"] == list(range(len(tokens)))


def test_the_largest_statistics_and_a_choice_of_sites(small, model):
    answer = asked(small, CHAT)
    kept = vt.capture(model, tokens_of(small, model, answer))
    (one,) = ask(small, answer["id"], layers=[1], heads=[3, 0], queries=[4, 9]).json()["attention"]
    assert (one["layer"], one["heads"], one["queries"]) == (1, [3, 0], [4, 9])
    assert "stats" not in one or one["stats"] is None
    best = kept.weights(1)[[3, 0]][:, [4, 9]].topk(8, -1)
    np.testing.assert_allclose(one["weights"], best.values.numpy(), atol=1e-5)
    for keys, values, want in zip(one["keys"][0], one["weights"][0], kept.weights(1)[3][[4, 9]], strict=True):
        assert [float(want[k]) for k in keys] == pytest.approx(values, abs=1e-5)
    (some,) = ask(small, answer["id"], layers=[0], keep="top2").json()["attention"]
    assert np.shape(some["weights"])[2] == 2
    (stats,) = ask(small, answer["id"], layers=[0], keep="stats").json()["attention"]
    entropy = torch.special.entr(kept.weights(0)).sum(-1)
    np.testing.assert_allclose(stats["stats"]["entropy"], entropy.numpy(), atol=1e-4)


def test_streams_completions_and_choices(small, model):
    with (
        small.http() as http,
        http.stream(
            "POST",
            "/v1/completions",
            json={"model": "tiny", "prompt": ["a", "the cat"], "n": 2, "max_tokens": 3, "stream": True},
        ) as answer,
    ):
        lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
    id = json.loads(lines[0].removeprefix("data: "))["id"]
    fronts = [ask(small, id, choice=n, layers=[0], keep="top1").json()["tokens"][0] for n in range(4)]
    assert fronts == ["a", "a", "the", "the"]
    answer = ask(small, id, choice=4)
    assert answer.status_code == 400
    assert "the request had 4" in answer.json()["error"]["message"]


def test_another_key_finds_nothing(small):
    """And cannot tell a request of another's from one that never was."""
    mine, theirs = asked(small, CHAT)["id"], asked(small, CHAT, key="another-key")["id"]
    assert ask(small, mine).status_code == ask(small, theirs, "another-key").status_code == 200
    never = ask(small, "chatcmpl-" + "0" * 24)
    for answer in (ask(small, mine, "another-key"), ask(small, theirs)):
        assert answer.status_code == 404
        assert answer.json() == never.json()
    assert code(never) == "request_not_found"
    with small.http(None) as http:
        assert http.post("/v1/attention", json={"id": mine}).status_code == 401


@pytest.mark.parametrize(
    "more",
    [
        {"layers": [2]},
        {"layers": []},
        {"layers": [-1]},
        {"heads": [4]},
        {"heads": list(range(2000))},
        {"queries": [10**6]},
        {"queries": [2**63]},
        {"keep": "all"},
        {"keep": "top0"},
        {"keep": "top1000"},
        {"kinds": ["cross"]},
        {"kinds": ["odd"]},
        {"choice": 1},
        {"choice": -1},
        {"limit": 2**40},
        {"layers": [0.5]},
    ],
)
def test_what_is_out_of_range(small, more):
    answer = ask(small, asked(small, CHAT)["id"], **more)
    assert answer.status_code == 400
    code(answer)


@pytest.mark.sampled
def test_few_are_kept_and_none_that_are_too_long():
    with served(Limits(attention_requests=2, attention_tokens=30)) as server:
        ids = [asked(server, CHAT, key=None)["id"] for _ in range(3)]
        assert [ask(server, id, None, layers=[0]).status_code for id in ids] == [404, 200, 200]
        long = asked(server, {"model": "tiny", "prompt": [5] * 30, "max_tokens": 1}, "/v1/completions", None)["id"]
        assert code(ask(server, long, None)) == "request_not_found"
        assert ask(server, ids[2], None, layers=[0]).status_code == 200  # it pushed nobody out
    with served(Limits(attention_requests=0)) as server:
        assert code(ask(server, asked(server, CHAT, key=None)["id"], None)) == "request_not_found"


def test_an_answer_of_a_million_numbers_is_refused_before_it_is_computed():
    with served() as server:
        body = {"model": "tiny", "prompt": [5] * 400, "max_tokens": 1}
        id = asked(server, body, "/v1/completions", None)["id"]
        answer = ask(server, id, None, keep="weights")
        assert code(answer) == "answer_too_large"
        assert "choose fewer layers" in answer.json()["error"]["message"]
        assert ask(server, id, None, keep="weights", layers=[1], heads=[0], queries=[400]).status_code == 200


def test_looking_waits_in_a_short_queue_and_the_server_goes_on():
    """The model stands still whenever somebody looks: five wait, the next is refused, and others are answered."""
    go, at = threading.Event(), threading.Event()

    def stand(module, args):
        if args[0].shape[1] > 20:  # the texts that are looked at, not the prompts
            at.set()
            go.wait(PATIENCE)

    model = copy_sharing_weights(chat_model())
    model.blocks[1].register_forward_pre_hook(stand)
    with served(model=model) as server:
        id = asked(server, {**CHAT, "max_tokens": 12}, key=None)["id"]
        found: list[int] = []
        askers = [
            threading.Thread(target=lambda: found.append(ask(server, id, None, layers=[0]).status_code))
            for _ in range(5)
        ]
        for asker in askers:
            asker.start()
        finished_requests = server.app.state.vantage.finished_requests
        until(lambda: at.is_set() and finished_requests.calls == 5)
        answer = ask(server, id, None)
        assert (answer.status_code, code(answer)) == (429, "queue_full")
        assert asked(server, {**CHAT, "max_tokens": 2}, key=None)["usage"]["completion_tokens"] == 2
        go.set()
        for asker in askers:
            asker.join(PATIENCE)
        assert found == [200] * 5
        until(lambda: finished_requests.calls == 0)


def test_finished_requests_of_tenants_are_apart():
    finished_requests = FinishedRequests(2, 10)
    finished_requests._kept["a"] = {"1": FinishedRequest("m", (FinishedChoice((1,), (2,)),))}
    assert finished_requests.get("a", "1").rows[0].tokens == [1, 2]
    for tenant in ("b", None):
        with pytest.raises(Exception, match="no finished request"):
            finished_requests.get(tenant, "1")
