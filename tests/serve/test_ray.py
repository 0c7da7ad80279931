"""``vantage serve --on ray`` as a user starts it: two replicas on this machine, asked by the official client."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import signal
import threading
import time

import httpx
import openai
import psutil
import pytest

from tests.processes import PATIENCE, until
from tests.serve.running import KEY, Server, serving, tiny

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install -c constraints.txt -e '.[ray]'", allow_module_level=True)
pytestmark = pytest.mark.slow

KEYS = {"VANTAGE_API_KEY": f"{KEY},another-key", "RAY_ADDRESS": "local"}
ASK = {"model": "tiny", "max_tokens": 24, "temperature": 0}
FLAGS = ("--on", "ray", "--replicas", "2", "--capacity", "1024", "--preload")


@pytest.fixture(scope="module")
def spread(folder):
    with serving(folder, f"tiny={tiny(folder)}", *FLAGS, env=KEYS) as server:
        yield server
        assert server.stop() == 0


def streamed(client: openai.OpenAI, messages: list) -> tuple[str, int]:
    """An answer, and how much of its prompt had been computed before."""
    text, cached = "", 0
    stream = client.chat.completions.create(
        **ASK, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        if chunk.usage is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
    return text, cached


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def replicas(server: Server) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if "ray::ServeReplica" in " ".join(process.cmdline()) else []
    return found


def asked_of(server: Server) -> list[str]:
    """The replicas that chats went to, in order."""
    return [line["replica"] for line in server.log() if "replica" in line and "chat" in line["route"]]


def test_conversations_stay_where_they_are_and_answers_are_those_of_one_server(spread, small):
    client, plain = spread.client(), small.client()
    used = set()
    for n in range(8):
        messages = [said(f"hello world number {n}, the cat sat on a mat")]
        first, cached = streamed(client, messages)
        assert first == streamed(plain, messages)[0]
        before = len(asked_of(spread))
        messages += [{"role": "assistant", "content": first}, said("and 12 dogs?")]
        second, cached = streamed(client, messages)
        assert second == streamed(plain, messages)[0]
        assert cached > 10  # it met its own first turn
        until(lambda before=before: len(asked_of(spread)) > before)
        went = asked_of(spread)[-2:]
        assert went[0] == went[1]
        used.add(went[0])
    assert len(used) == 2  # both are at work


def test_keys_never_share(spread):
    messages = [said("a secret that 3 birds told the cat on a mat")]
    streamed(spread.client(), messages)
    assert streamed(spread.client(), messages)[1] > 10
    assert streamed(spread.client("another-key"), messages)[1] == 0


def test_who_gets_in_is_the_same(spread):
    with pytest.raises(openai.AuthenticationError):
        spread.client("a-wrong-key").models.list()
    with pytest.raises(openai.BadRequestError, match="nonsense"):
        spread.client().chat.completions.create(**ASK, messages=[said("x")], extra_body={"nonsense": 1})
    with pytest.raises(openai.NotFoundError):
        spread.client().chat.completions.create(model="none", messages=[said("x")])
    with spread.http() as http:
        assert http.get("/v1/models", headers={"Host": "evil.example.org"}).status_code == 403
        assert http.get("/v1/models", headers={"Origin": "http://evil.example.org"}).status_code == 403
        huge = {"model": "tiny", "messages": [said("x" * 2**20)]}
        assert http.post("/v1/chat/completions", json=huge).status_code == 413
    with spread.http(None) as http:
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/metrics").status_code == 401
    assert "a-key-for-tests" not in spread.raw_log()


def test_metrics_of_all_replicas(spread):
    from prometheus_client.parser import text_string_to_metric_families

    streamed(spread.client(), [said("how many tokens were counted?")])
    with spread.http() as http:
        page = http.get("/metrics").raise_for_status().text
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    named = {s.labels["replica"] for s in samples}
    assert "front" in named
    assert len(named) == 3
    assert spread.metric("vantage_tokens_total", kind="generated") > 0


def test_a_finished_request_can_be_looked_into(spread):
    made = spread.client().chat.completions.create(**ASK, messages=[said("where does the cat look?")])
    with spread.http() as http:
        seen = http.post("/v1/attention", json={"id": made.id, "layers": [0], "keep": "stats"})
        assert seen.status_code == 200, seen.text
    with spread.http("another-key") as http:
        assert http.post("/v1/attention", json={"id": made.id}).status_code == 404


def test_only_this_machine_can_talk_to_ray(spread):
    """Ray Serve listens on one port of each replica whatever it is told: there a caller needs the cluster's token."""
    import grpc

    processes = [psutil.Process(spread.process.pid), *psutil.Process(spread.process.pid).children(recursive=True)]
    outside = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            listening = [c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
            outside += [at for at in listening if not ipaddress.ip_address(at.ip.removeprefix("::ffff:")).is_loopback]
    assert len(outside) <= 2
    for at in outside:
        with grpc.insecure_channel(f"127.0.0.1:{at.port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=PATIENCE)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_replica_that_is_killed_is_replaced(spread):
    client = spread.client(max_retries=3)
    messages = [said("hello world, this will be cut")]
    whole, _ = streamed(client, messages)
    replicas(spread)[0].send_signal(signal.SIGKILL)
    for n in range(6):  # whichever it was, none of these is lost
        assert streamed(client, [said(f"{n} dogs and 3 birds")])[0]
    assert streamed(client, messages)[0] == whole
    until(lambda: len(replicas(spread)) == 2)

    def both() -> bool:
        with spread.http() as http:
            return {"front"} < set(_names(http)) and len(_names(http)) == 3

    until(both)


def _names(http: httpx.Client) -> set[str]:
    from prometheus_client.parser import text_string_to_metric_families

    page = http.get("/metrics").raise_for_status().text
    return {s.labels["replica"] for family in text_string_to_metric_families(page) for s in family.samples}


def test_it_ends_gracefully_with_all_that_it_started(folder):
    with serving(folder, f"tiny={tiny(folder)}", "--on", "ray", "--capacity", "2048", env=KEYS) as server:
        started = psutil.Process(server.process.pid).children(recursive=True)
        got: list[str] = []
        long = {**ASK, "max_tokens": 400, "messages": [said("hello world")], "stream": True}
        stream = server.client().chat.completions.create(**long, logit_bias={"2": -100})

        def read() -> None:
            got.extend(chunk.choices[0].finish_reason or "" for chunk in stream if chunk.choices)

        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: len(got) > 5)
        server.process.send_signal(signal.SIGTERM)
        reader.join(60)
        assert got[-1] == "length"  # it ran to its end
        assert server.process.wait(PATIENCE) == 0
        end = time.monotonic() + PATIENCE
        while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in _alive(started)):
            assert time.monotonic() < end, [p.cmdline() for p in _alive(started)]
            time.sleep(0.1)


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
