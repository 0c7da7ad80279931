"""The server's memory under a steady load: ``python -m tools.server_memory --minutes 60``.

Starts ``vantage serve`` with a tiny model (or the one that is named), sends so many requests a second, of every kind
and each with a text of its own, and prints what the process holds. At the end come the medians of the quarters and the
slope over the second half: the first half fills what has a bound (prefixes, the last requests; the tokenizer's cache
is filled before). Exit code 1 if it grows faster than ``--most`` allows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.serve.running import Server, serving, tiny

MIB = 2**20
CACHED_WORDS = 12_000
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "said", "dogs", "birds", "no", "hello", "world", "sea", "rain")
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


@dataclass(frozen=True)
class Held:
    """One look at a process, in bytes."""

    second: float
    resident: int
    heap: int  # what malloc took from the system for small things
    mapped: int  # anonymous memory besides: malloc's other arenas, stacks, tensors
    threads: int
    files: int

    @staticmethod
    def of(pid: int, began: float) -> Held:
        heap = mapped = resident = 0
        anonymous = is_heap = False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            first = line.split(" ", 1)[0]
            if "-" in first and not first.endswith(":"):
                words = line.split()
                is_heap, anonymous = words[-1] == "[heap]", len(words) == 5
            elif first == "Rss:":
                size = int(line.split()[1]) * 1024
                resident += size
                heap += size if is_heap else 0
                mapped += size if anonymous else 0
        threads, files = len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))
        return Held(time.monotonic() - began, resident, heap, mapped, threads, files)


def slope(looks: list[Held]) -> float:
    """Bytes a minute over the second half: the median over all pairs (Theil and Sen), which one step cannot turn."""
    late = [look for look in looks if look.second >= looks[-1].second / 2]
    late = late[:: max(1, len(late) // 200)]
    steps = [(b.resident - a.resident) / (b.second - a.second) for i, a in enumerate(late) for b in late[i + 1 :]]
    return 60 * statistics.median(steps) if steps else 0.0


def quarters(looks: list[Held]) -> list[float]:
    """The median of what was resident in each quarter of the time, in MiB."""
    end = looks[-1].second
    parts = [[look.resident for look in looks if end * i / 4 <= look.second <= end * (i + 1) / 4] for i in range(4)]
    return [statistics.median(part) / MIB for part in parts if part]


def request(model: str, chats: bool, rng: random.Random) -> tuple[str, dict[str, Any], str]:
    """A route, a body and what becomes of the answer: it is read, or left after a part."""
    numbers = " ".join(str(rng.randrange(10**6)) for _ in range(3))
    text = f"{' '.join(rng.choices(WORDS, k=rng.randint(3, 24)))} {numbers}"
    body: dict[str, Any] = {"model": model, "max_tokens": rng.randint(1, 12), "seed": rng.randrange(2**32)}
    match rng.randrange(8) if chats else rng.randrange(5, 8):
        case 0 | 1:
            kind = {"stream": True}
        case 2:
            schema = {"name": "a", "schema": SCHEMA}
            kind = {"response_format": {"type": "json_schema", "json_schema": schema}, "max_tokens": 24}
        case 3:
            kind = {"logprobs": True, "top_logprobs": 5}
        case 4:
            kind = {"n": 2, "stop": ["cat", "."]}
        case 5:
            return "/v1/completions", {**body, "prompt": [text, text[::-1]], "logprobs": 3}, "read"
        case 6:
            return "/v1/completions", {**body, "prompt": text, "regex": rf"[0-9]{{{rng.randint(1, 9)}}}"}, "read"
        case _:
            return "/v1/completions", {**body, "prompt": text, "stream": True, "max_tokens": 48}, "left"
    messages = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": text}]
    return "/v1/chat/completions", {**body, "messages": messages, **kind}, "read"


async def ask(http: httpx.AsyncClient, route: str, body: dict[str, Any], way: str, ends: Counter[str]) -> None:
    try:
        async with http.stream("POST", route, json=body) as answer:
            ends[str(answer.status_code)] += 1
            async for _ in answer.aiter_bytes():
                if way == "left":
                    return
    except httpx.HTTPError as e:
        ends[type(e).__name__] += 1


async def fill_tokenizer(http: httpx.AsyncClient, model: str) -> None:
    """The tokenizer's cache holds the last 10,000 words that it met: a process that has met fewer grows until then."""
    for first in range(0, CACHED_WORDS, 500):
        words = " ".join(str(10**7 + number) for number in range(first, first + 500))
        (await http.post("/tokenize", json={"model": model, "prompt": words})).raise_for_status()


async def load(server: Server, args: argparse.Namespace, looks: list[Held], ends: Counter[str]) -> None:
    """So many requests a second, whether or not those before were answered; never more than 64 at once."""
    rng, began = random.Random(args.seed), time.monotonic()
    places, tasks = asyncio.Semaphore(64), set[asyncio.Task[None]]()
    next_look = 0.0
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=32)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        name = (await http.get("/v1/models")).json()["data"][0]["id"]
        await fill_tokenizer(http, name)
        while (now := time.monotonic() - began) < 60 * args.minutes:
            if now >= next_look:
                looks.append(Held.of(server.process.pid, began))
                show(looks[-1], ends)
                next_look += args.every
            await places.acquire()
            task = asyncio.create_task(ask(http, *request(name, not args.no_chat, rng), ends))
            tasks.add(task)
            task.add_done_callback(lambda done: (tasks.discard(done), places.release()))
            await asyncio.sleep(max(0.0, (sum(ends.values()) + len(tasks)) / args.rate - now))
        await asyncio.gather(*tasks)
    looks.append(Held.of(server.process.pid, began))
    show(looks[-1], ends)


def show(look: Held, ends: Counter[str]) -> None:
    answers = ", ".join(f"{count} × {end}" for end, count in sorted(ends.items())) or "no answer yet"
    print(
        f"{look.second / 60:6.1f} min  resident {look.resident / MIB:7.1f} MiB, heap {look.heap / MIB:6.1f}, "
        f"mapped {look.mapped / MIB:6.1f}, {look.threads} threads, {look.files} files; {answers}",
        flush=True,
    )


@contextlib.contextmanager
def server_for(args: argparse.Namespace) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or f"tiny={tiny(folder)}"
        with serving(folder, model, "--preload", "--capacity", str(args.capacity), "--log-level", "error") as server:
            yield server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="what to serve; default: a tiny model made for this")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=16.0, help="requests a second; default: 16")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two looks; default: 15")
    parser.add_argument("--capacity", type=int, default=4096, help="tokens of cache; default: 4096")
    parser.add_argument("--most", type=float, default=0.25, help="MiB a minute that are no growth; default: 0.25")
    parser.add_argument("--no-chat", action="store_true", help="completions only, for a model without a chat template")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    looks, ends = list[Held](), Counter[str]()
    with server_for(args) as server:
        asyncio.run(load(server, args, looks, ends))
    grown, per_minute = looks[-1].resident - looks[len(looks) // 2].resident, slope(looks) / MIB
    print(f"medians of the quarters: {', '.join(f'{median:.1f}' for median in quarters(looks))} MiB resident")
    print(
        f"{sum(ends.values()):,} requests in {args.minutes:g} minutes. In the second half it grew by {grown / MIB:.1f}"
    )
    print(f"MiB, {per_minute:+.3f} MiB a minute by the median of all pairs; at most {args.most:g} is no growth.")
    return int(per_minute > args.most)


if __name__ == "__main__":
    sys.exit(main())
