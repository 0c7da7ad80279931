"""64 clients at once on the real model: random lengths, disconnects and stalled readers; more than it has places for.

Ten seconds in ``make test``, a minute and five in ``make test-all``: there refusals and /health are timed as well, and
memory is watched for growth that goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.processes import PATIENCE, until
from tests.serve.running import Server, pulled, serving
from tests.serve.watching import polled, weighed

CLIENTS = 64
ROWS, QUEUE = 60, 2  # fewer places than clients: somebody is always refused
LONGEST = 12
WAYS = {"read": 14, "stall": 2, "leave": 2, "vanish": 1}
STUCK = 2  # readers that never read
STALL_S = 15  # a reader that is only slow, on a busy machine, is not cut off
ROUTE = "/v1/chat/completions"
ENDS = ("answered", "left", "refused", "vanished")
THINGS = ("cats", "the sea", "bread", "a lamp", "trains", "rain", "bees", "chess")
PROMPTS = tuple(
    f"{how} {thing}{', please' * i}."
    for how in ("Tell me about", "Write a line about")
    for i, thing in enumerate(THINGS)
)
MIB = 2**20


def asked(prompt: str, tokens: int, **more) -> dict:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "smollm2", "messages": messages, "max_tokens": tokens, "temperature": 0, **more}


@dataclass
class Told:
    """What became of the requests."""

    ends: Counter = field(default_factory=Counter)
    refusals: list[float] = field(default_factory=list)  # seconds until each 429

    @property
    def every_end(self) -> bool:
        """Whoever was refused found all rows and the queue taken: the server had that many at once."""
        return self.ends["answered"] > CLIENTS / 2 and all(self.ends[end] for end in ENDS)


async def pieces(response: httpx.Response):
    """The texts of a stream; ends after [DONE], and raises if that never comes."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            read = json.loads(line[6:])
            assert "error" not in read, read
            yield read["choices"][0]["delta"].get("content") or ""
    raise AssertionError("the stream broke off")


async def one(http: httpx.AsyncClient, rng: random.Random, wanted: dict[str, list[str]], told: Told) -> None:
    """One request, read to its end, given up or left lying. Every way it ends is counted."""
    prompt, tokens = rng.choice(PROMPTS), rng.randint(1, LONGEST)
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    told.ends["asked"] += 1
    patience = rng.random() / 2 if way == "vanish" else None
    began, response = time.perf_counter(), None
    try:
        async with asyncio.timeout(patience):  # some leave before the first token
            request = http.build_request("POST", ROUTE, json=asked(prompt, tokens, stream=True))
            response = await http.send(request, stream=True)
    except TimeoutError:
        told.ends["vanished"] += 1
        return
    async with contextlib.aclosing(response):
        if response.status_code == 429:
            told.refusals.append(time.perf_counter() - began)
            told.ends["refused"] += 1
            assert 1 <= int(response.headers["retry-after"]) <= 60
            return await asyncio.sleep(rng.random())  # sooner than told, to keep it full
        assert response.status_code == 200
        got = []
        async for text in pieces(response):
            got.append(text)
            if way == "leave" and len(got) > tokens // 2:
                told.ends["left"] += 1
                return
            if way == "stall" and len(got) == 2:
                await asyncio.sleep(rng.random() * 3)
        assert "".join(got) == "".join(wanted[prompt][:tokens])
        told.ends["answered"] += 1


async def alone(http: httpx.AsyncClient, prompt: str) -> list[str]:
    """The texts of the tokens, when nothing else runs."""
    answer = (await http.post(ROUTE, json=asked(prompt, LONGEST, logprobs=True))).raise_for_status().json()
    choice = answer["choices"][0]
    texts = [token["token"] for token in choice["logprobs"]["content"]]
    assert "".join(texts) == choice["message"]["content"]
    assert "\ufffd" not in "".join(texts)  # whole characters: what a shorter answer says is certain
    return texts


async def stick(server: Server) -> tuple[socket.socket, str]:
    """A reader that takes the beginning of an answer that no buffer holds, and nothing more."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps(
        asked(PROMPTS[0], 700, stream=True, logprobs=True, top_logprobs=20, logit_bias={"2": -100})
    ).encode()
    head = f"POST {ROUTE} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    await loop.sock_connect(sock, (host, int(port)))
    await loop.sock_sendall(sock, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    said = (await loop.sock_recv(sock, 1024)).decode()
    assert said.startswith("HTTP/1.1 200")
    headers = dict(line.split(": ", 1) for line in said.split("\r\n\r\n")[0].split("\r\n")[1:])
    return sock, headers["x-request-id"]


async def storm(server: Server, seconds: float) -> tuple[Told, list[str]]:
    """What became of the requests, and the ids of those that were never read."""
    told = Told()
    async with httpx.AsyncClient(
        base_url=server.url, timeout=PATIENCE, limits=httpx.Limits(max_connections=None)
    ) as http:
        wanted = {prompt: await alone(http, prompt) for prompt in PROMPTS}
        assert len({"".join(texts) for texts in wanted.values()}) == len(PROMPTS)  # another's answer would be seen
        stuck = [await stick(server) for _ in range(STUCK)]
        begun = time.monotonic()

        def goes_on() -> bool:
            """For so long, and on a slow machine until every way to end was seen."""
            passed = time.monotonic() - begun
            return passed < seconds or (not told.every_end and passed < seconds + PATIENCE)

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            while goes_on():
                await one(http, rng, wanted, told)

        await asyncio.gather(*(client(seed) for seed in range(CLIENTS)))
        ids = {id for _, id in stuck}
        await asyncio.to_thread(until, lambda: ids <= {line.get("id") for line in server.log()})  # they were cut off
    for sock, _ in stuck:
        sock.close()
    return told, [id for _, id in stuck]


def check(folder: Path, seconds: float, slope: float | None = None) -> None:
    """``slope``: bytes a minute by which memory may grow in the end. Without it nothing is timed."""
    options = ["--batch-invariant", "--no-share-prefixes", "--preload", "--stall-seconds", str(STALL_S)]
    sizes = ["--rows", str(ROWS), "--queue", str(QUEUE), "--capacity", "8192"]
    with serving(folder, pulled("smollm2"), *options, *sizes) as server:
        start = server.metric("vantage_cache_blocks", None, state="used")
        with polled(server) as health, weighed(server) as memory:
            told, stuck = asyncio.run(storm(server, seconds))
        worst = max(told.refusals)
        print(dict(told.ends), f"the slowest refusal: {worst:.3f} s", str(health), sep="\n")
        print(f"memory: {memory.seen[0] / MIB:.0f} MiB, grown by {memory.grown / MIB:.1f}")
        lost(server, told, stuck)
        if slope is not None:
            assert worst < 1 + 2e-3 * max(health.twin)  # an answer takes longer, and the queue before it
            health.check()
            assert memory.slope < slope, f"{memory.slope / MIB:.2f} MiB a minute"
        assert memory.grown < 64 * MIB
        until(lambda: server.metric("vantage_cache_blocks", None, state="used") == start)
        assert server.metric("vantage_busy", None) == 0
        assert server.metric("vantage_engine_faults_total", None) == 0
        assert not [line for line in server.log() if line["event"] == "fault"]


def lost(server: Server, told: Told, stuck: list[str]) -> None:
    """None was: our count of every end, and the server's."""
    ends = told.ends
    assert ends["asked"] == sum(ends[end] for end in ENDS)
    assert told.every_end

    def counted(**labels: str) -> float:
        return server.metric("vantage_requests_total", None, route=ROUTE, **labels)

    others = len(PROMPTS) + STUCK
    until(lambda: ends["asked"] + others - ends["vanished"] <= counted() <= ends["asked"] + others)
    # whoever vanished may have been answered or refused just before
    assert 0 <= counted(status="200") - (ends["answered"] + ends["left"] + others) <= ends["vanished"]
    assert 0 <= counted(status="429") - ends["refused"] <= ends["vanished"]
    assert counted(status="500") == counted(status="503") == counted(status="504") == 0
    for line in (line for line in server.log() if line.get("id") in stuck):
        assert line["finish"] == ["cut"]
        assert line["completion_tokens"] < 700
        stuck.remove(line["id"])
    assert stuck == []


@pytest.mark.slow
def test_many_clients_for_a_minute(folder):
    check(folder, 60, slope=12 * MIB)


@pytest.mark.slow
def test_many_clients_for_long(folder):
    check(folder, 300, slope=4 * MIB)
