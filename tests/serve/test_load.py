"""64 clients at once on the real model: random lengths, disconnects and stalled readers."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.serve.running import ROOT, Server, pulled, serving, until

CLIENTS = 64
LONGEST = 16
PROMPTS = (
    "Name a colour.",
    "What is 2 + 2?",
    "Tell me about cats in a few words, please.",
    "The capital of France is",
    "Write a line of Python.",
)


def asked(prompt: str, tokens: int) -> dict:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "smollm2", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}


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


async def one(http: httpx.AsyncClient, rng: random.Random, wanted: dict[str, list[str]], told: Counter) -> None:
    """One request, read to its end, given up or left lying. Every way it ends is counted."""
    prompt, tokens = rng.choice(PROMPTS), rng.randint(1, LONGEST)
    way = rng.choices(["read", "leave", "stall"], [8, 1, 1])[0]
    async with http.stream("POST", "/v1/chat/completions", json=asked(prompt, tokens)) as response:
        if response.status_code == 429:
            assert 1 <= int(response.headers["retry-after"]) <= 60
            told["refused"] += 1
            return await asyncio.sleep(rng.random())
        assert response.status_code == 200
        got = []
        async for text in pieces(response):
            got.append(text)
            if way == "leave" and len(got) > tokens // 2:
                told["left"] += 1
                return
            if way == "stall" and len(got) == 2:
                await asyncio.sleep(rng.random() * 3)
        # greedy answers of any length are the beginning of the one that was given alone
        assert "".join(wanted[prompt]).startswith("".join(got))
        told["answered"] += 1


async def alone(http: httpx.AsyncClient, prompt: str) -> list[str]:
    async with http.stream("POST", "/v1/chat/completions", json=asked(prompt, LONGEST)) as response:
        return [text async for text in pieces(response)]


async def storm(server: Server, seconds: float) -> tuple[Counter, int]:
    """What became of the requests, and how many bytes the server grew by while all clients were at it."""
    told: Counter = Counter()
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
        wanted = {prompt: await alone(http, prompt) for prompt in PROMPTS}
        before = server.memory()
        end = asyncio.get_running_loop().time() + seconds

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            while asyncio.get_running_loop().time() < end:
                told["asked"] += 1
                await one(http, rng, wanted, told)

        await asyncio.gather(*(client(seed) for seed in range(CLIENTS)))
    return told, server.memory() - before


def check(folder: Path, seconds: float, *args: str) -> None:
    options = ["--batch-invariant", "--no-share-prefixes", "--rows", "16", "--queue", "24", "--capacity", "4096"]
    with serving(folder, pulled("smollm2"), *options, *args) as server:
        with server.http(None) as http:
            http.post("/v1/completions", json={"model": "smollm2", "prompt": "a", "max_tokens": 1}).raise_for_status()
        start = server.metric("vantage_cache_blocks", None, state="used")
        host, port = server.url.removeprefix("http://").split(":")
        poll = [sys.executable, str(ROOT / "tests/serve/health.py"), host, port]
        with subprocess.Popen(poll, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as health:
            told, grown = asyncio.run(storm(server, seconds))
            lines = [[float(x) for x in line.split()] for line in health.communicate()[0].splitlines()]
        times, late = zip(*lines, strict=True)
        print(dict(told), f"{grown=:,}, {max(late)=:.1f} ms")
        print(f"health: median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms")
        assert told["asked"] == told["answered"] + told["refused"] + told["left"]  # none was lost
        assert told["answered"] > CLIENTS / 2
        assert told["refused"] > 0
        assert told["left"] > 0
        assert statistics.quantiles(times, n=50)[-1] < 100
        assert max(times) < 100 + max(late)  # a machine that wakes nobody in time answers nobody in time
        assert grown < 48 * 2**20
        until(lambda: server.metric("vantage_cache_blocks", None, state="used") == start)
        assert server.metric("vantage_busy", None) == 0
        assert not [line for line in server.log() if line["event"] == "fault"]


def test_many_clients(folder):
    check(folder, 8)


@pytest.mark.slow
def test_many_clients_for_long(folder):
    check(folder, 300)
