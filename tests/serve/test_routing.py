"""Which replica gets a request, and what a front does with its answer: real replicas, in this process."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.running import KEY, tiny
from vantage.serve import Access, ServedModel, ServerSettings
from vantage.serve.gateway import ReplicaGone, create_gateway
from vantage.serve.logs import ServerLog
from vantage.serve.metrics import merge_pages
from vantage.serve.replica import Replica
from vantage.serve.routing import MAX_IMBALANCE, Routes, chain
from vantage.serve.settings import Batching, Logs

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hello"}


def asked(*messages, tenant="key-0", **more):
    return chain(tenant, CHAT, json.dumps({"model": "m", "messages": messages, **more}).encode())


def told(prompt, tenant="key-0"):
    return chain(tenant, TEXT, json.dumps({"model": "m", "prompt": prompt}).encode())


# ---- the rule


def test_a_conversation_goes_where_it_was():
    routes, loads = Routes(), {"a": 0, "b": 0, "c": 0}
    for n in range(50):
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": f"question {n}"}]
        first = routes.choose(asked(*messages), loads)
        for turn in range(3):
            messages += [{"role": "assistant", "content": f"answer {turn}" * 50}, USER]
            assert routes.choose(asked(*messages), loads) == first


def test_conversations_spread_though_they_share_a_short_system_message():
    routes, loads = Routes(), {"a": 0, "b": 0}
    system = {"role": "system", "content": "be brief"}
    went = Counter(
        routes.choose(asked(system, {"role": "user", "content": f"question {n}"}), loads) for n in range(200)
    )
    assert min(went.values()) > 50


def test_a_long_system_message_is_worth_going_for():
    routes, loads = Routes(), {"a": 0, "b": 0}
    system = {"role": "system", "content": "be brief. " * 300}
    went = {routes.choose(asked(system, {"role": "user", "content": f"question {n}"}), loads) for n in range(50)}
    assert len(went) == 1


def test_a_text_that_goes_on_goes_where_its_beginning_is():
    routes, loads = Routes(), {"a": 0, "b": 0, "c": 0}
    for n in range(30):
        text = f"chapter {n} " * 40
        assert routes.choose(told(text), loads) == routes.choose(told(text + "and so on" * 100), loads)
        tokens = list(range(n, n + 200))
        assert routes.choose(told(tokens), loads) == routes.choose(told([*tokens, 7, 8]), loads)
        assert told([tokens, [1]]) == told([tokens, [2]])  # of several prompts the first decides


def test_neither_keys_nor_models_nor_tools_share():
    chains = [
        asked(USER),
        asked(USER, tenant="key-1"),
        asked(USER, tenant=None),
        asked(USER, model="n"),
        asked(USER, tools=[{"type": "function"}]),
    ]
    assert len({one[0] for one in chains}) == len(chains)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"messages": 3}', b'{"prompt": null}', b'{"messages": []}'])
def test_what_has_no_prompt_has_no_prefix(body):
    assert chain(None, CHAT, body) == chain(None, TEXT, body) == ()
    assert Routes().choose((), {"a": 3, "b": 1}) == "b"


def test_a_replica_that_is_too_busy_is_left_alone():
    routes = Routes()
    first = routes.choose(asked(USER), {"a": 0, "b": 0})
    other = {"a": "b", "b": "a"}[first]
    assert routes.choose(asked(USER), {first: MAX_IMBALANCE, other: 0}) == first
    assert routes.choose(asked(USER), {first: MAX_IMBALANCE + 1, other: 0}) == other
    assert routes.choose(asked(USER), {"a": 0, "b": 0}) == other  # which holds it now
    assert routes.choose(asked(USER), {first: 0}) == first  # the other is gone


def test_another_front_chooses_the_same_where_nothing_is_known():
    loads = dict.fromkeys("abcde", 0)
    before = {n: Routes().choose(told(f"text {n}"), loads) for n in range(100)}
    assert before == {n: Routes().choose(told(f"text {n}"), loads) for n in range(100)}
    without = {n: Routes().choose(told(f"text {n}"), dict.fromkeys("abcd", 0)) for n in range(100)}
    assert all(without[n] == before[n] for n in before if before[n] != "e")  # only e's move


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), min_size=2, max_size=4)), max_size=60))
def test_nobody_gets_more_than_its_bound(requests):
    routes = Routes(kept=8)
    for prompt, loads in requests:
        named = {str(i): load for i, load in enumerate(loads)}
        assert named[routes.choose(told(f"text {prompt}"), named)] <= min(loads) + MAX_IMBALANCE
    assert len(routes._known) <= 8


def test_pages_of_metrics_are_one_page():
    counter = '# HELP n_total Of a\n# TYPE n_total counter\nn_total{a="}{"} 2\nn_total 1\n'
    page = counter + "# HELP g Of b\n# TYPE g gauge\ng 3\n"
    families = list(text_string_to_metric_families(merge_pages({"x": page, 'y"': page})))
    samples = [sample for family in families for sample in family.samples]
    assert sorted(s.labels["replica"] for s in samples) == ["x"] * 3 + ['y"'] * 3
    assert sum(s.value for s in samples) == 12
    assert {s.labels.get("a") for s in samples} == {None, "}{"}


# ---- the front, over replicas in this process


class Here:
    """A fleet without a cluster. ``dies``: after so many messages of this replica."""

    def __init__(self, settings, names):
        self.replicas = {name: Replica(settings) for name in names}
        self.dies: dict[str, int] = {}
        self.asked: list[str] = []

    def names(self):
        return list(self.replicas)

    async def ask(self, name, scope, body):
        self.asked.append(name)
        left = self.dies.get(name, 10**6)
        answer = self.replicas[name].ask(scope, body)
        try:
            async for messages in answer:
                for message in messages:
                    if left == 0:
                        raise ReplicaGone(name)
                    left -= 1
                    yield [message]
        finally:
            await answer.aclose()


@pytest.fixture
def here(folder):
    settings = ServerSettings(
        (ServedModel("tiny", str(tiny(folder))),),
        access=Access(keys=(KEY,)),
        batching=Batching(rows=4, queue=4, capacity=256),
        logs=Logs(level="error"),
    )
    fleet = Here(settings, ("a", "b"))
    return fleet, create_gateway(settings, fleet, log=ServerLog(Logs(level="info"), io.StringIO()))


def run(here, work):
    fleet, app = here

    async def whole():
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            try:
                return await work(http, fleet)
            finally:
                for replica in fleet.replicas.values():
                    await replica.end()

    return asyncio.run(whole())


def body(**more):
    return {"model": "tiny", "messages": [USER], "max_tokens": 6, "temperature": 0, **more}


def test_a_replica_that_dies_before_its_answer_is_replaced(here):
    async def work(http, fleet):
        whole = (await http.post(CHAT, json=body())).json()
        first = fleet.asked[-1]
        fleet.dies[first] = 0
        again = await http.post(CHAT, json=body())
        assert again.status_code == 200
        assert again.json()["choices"] == whole["choices"]
        assert fleet.asked[-2:] == [first, {"a": "b", "b": "a"}[first]]
        fleet.dies = {"a": 0, "b": 0}
        lost = await http.post(CHAT, json=body())
        assert lost.status_code == 503
        assert lost.json()["error"]["code"] == "replica_lost"
        assert lost.headers["retry-after"] == "1"

    run(here, work)


def test_a_replica_that_dies_in_a_stream_ends_it_with_an_error(here):
    async def work(http, fleet):
        fleet.dies = {"a": 3, "b": 3}
        answer = await http.post(CHAT, json=body(stream=True))
        assert answer.status_code == 200
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert events[-1]["error"]["code"] == "replica_lost"
        assert "[DONE]" not in answer.text
        assert len(fleet.asked) == 1  # half an answer is not begun again

    run(here, work)


def test_one_of_the_replicas_has_the_request_that_attention_looks_into(here):
    async def work(http, fleet):
        made = (await http.post(CHAT, json=body())).json()
        for _ in range(3):
            seen = await http.post("/v1/attention", json={"id": made["id"], "layers": [0], "keep": "stats"})
            assert seen.status_code == 200, seen.text
        assert (await http.post("/v1/attention", json={"id": "chatcmpl-none"})).status_code == 404

    run(here, work)


def test_the_guard_stands_before_the_replicas(here):
    async def work(http, fleet):
        assert (
            await http.post(CHAT, json=body(), headers={"Authorization": "Bearer wrong-key-wrong"})
        ).status_code == 401
        assert (await http.post(CHAT, json=body(), headers={"Host": "evil.example.org"})).status_code == 403
        assert (await http.get("/v1/models", headers={"Origin": "http://evil.example.org"})).status_code == 403
        assert (await http.post(CHAT, content=b"x" * 2**21)).status_code == 415
        assert not fleet.asked
        refused = await http.post(CHAT, json=body(nonsense=1))
        assert refused.status_code == 400
        assert refused.headers["x-request-id"].startswith("req_")
        assert len(refused.headers.get_list("x-request-id")) == 1
        assert (await http.get("/nothing")).status_code == 404
        assert (await http.get("/health")).json() == {"status": "ok"}
        fleet.replicas, kept = {}, fleet.replicas
        assert (await http.get("/health")).json() == {"status": "starting"}
        assert (await http.post(CHAT, json=body())).status_code == 503
        fleet.replicas = kept

    run(here, work)
