"""The studio under a scripted user, and its memory: ``python tools/studio_memory.py --minutes 60``.

Starts ``vantage studio`` in a process of its own and does what a user does, over and over with other texts: chats,
looks at attention with other encodings, opens the atlas, the lens, ablation and patching, swaps encodings. Prints the
memory of the process after each round, and in the end the mean of each quarter: what is kept must be bounded, so that
the line is flat once the stores are full. With SmolLM2 on a busy machine five minutes are too short for that. Exit code
1 where the last quarter is more than ``--most`` MiB above the second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import httpx

TEXT = "the cat sat on a mat while rain fell over harbour town and nobody heard an old clock strike seven again"
WORDS = TEXT.split()
ENCODINGS = ("alibi", "none", "rope-linear", "t5")


class ScriptedUser:
    """Calls of the page's API, each with a text of its own."""

    def __init__(self, url: str, tokens: int):
        page = httpx.get(url, timeout=60).text
        token = re.search(r'name="vantage-token" content="([^"]+)"', page)
        assert token, "the page has no token: make web"
        self._http = httpx.Client(base_url=f"{url.rstrip('/')}/api", headers={"X-Vantage-Token": token[1]}, timeout=600)
        self.model = self._http.get("/models").json()["default"]
        self._drawn, self._tokens, self._conversation = random.Random(0), tokens, None

    def text(self, words: int) -> str:
        return " ".join(self._drawn.choices(WORDS, k=words))

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._http.request(method, path, json=body)
        assert answer.status_code < 500, answer.text
        return answer.json() if "json" in answer.headers["content-type"] else answer.content

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        with self._http.stream("POST", path, json={"model": self.model, **body}) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines]

    def round(self) -> None:
        self.chat()
        self.attention()
        short = self.text(6)
        self.stream("/lens", {"text": short})
        self.stream("/lens/vector", {"text": short, "position": 3})
        self.stream("/lens/ablate", {"text": short, "part": "head", "layer": 1, "tokens": 4})
        self.stream("/lens/patch", {"clean": f"{short} cat", "corrupted": f"{short} rain", "activation": "heads"})
        swap = {"model": self.model, "text": self.text(40), "tokens": 4, "position": {"name": "alibi"}}
        self.ask("POST", "/positions/swap", swap)

    def chat(self) -> None:
        """Goes on with a conversation, and begins another one now and then."""
        body: dict[str, Any] = {
            "message": self.text(12),
            "sampling": {"max_tokens": 12},
            "watch": {"attention": {"layer": 3}},
        }
        if self._conversation is not None and self._drawn.random() < 0.7:
            body |= {"conversation": self._conversation}
        events = self.stream("/chat", body)
        self._conversation = next((one["conversation"] for one in events if "conversation" in one), None)

    def attention(self) -> None:
        body: dict[str, Any] = {"model": self.model, "text": self.text(self._tokens)}
        if self._drawn.random() < 0.5:
            body["position"] = {"name": self._drawn.choice(ENCODINGS)}
        answer = self.ask("POST", "/attention", body)
        if "id" not in answer:  # an encoding that this model cannot have is refused in words
            return
        for layer in (0, 3, 5):
            self.ask("GET", f"/attention/{answer['id']}/head?layer={layer}&head=1")
            self.ask("GET", f"/attention/{answer['id']}/heads?layer={layer}")
        self.ask("GET", f"/attention/{answer['id']}/scores?layer=3&head=1&query=5")
        if self._drawn.random() < 0.3:
            self.ask("GET", f"/attention/{answer['id']}/atlas")


def rss(pid: int) -> float:
    """MiB that the process holds."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def rounds(user: ScriptedUser, pid: int, minutes: float) -> Iterator[tuple[float, float]]:
    began = time.monotonic()
    for n in itertools.count(1):
        user.round()
        seconds, now = time.monotonic() - began, rss(pid)
        print(f"{seconds / 60:6.1f} min  round {n:4d}  {now:8.0f} MiB", flush=True)
        yield seconds, now
        if seconds > 60 * minutes:
            return


def quarters(samples: list[tuple[float, float]]) -> list[float]:
    """Mean MiB in each quarter of the rounds. One round alone says little: what a pass needs comes and goes."""
    if len(samples) < 8:
        raise SystemExit(f"{len(samples)} rounds are too few to say anything: give more minutes")
    edges = [len(samples) * n // 4 for n in range(5)]
    held = [memory for _, memory in samples]
    return [sum(held[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="what the studio serves; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long; default: %(default)s")
    parser.add_argument("--words", type=int, default=200, help="of a text whose attention is looked at")
    parser.add_argument("--most", type=float, default=64.0, help="MiB that count as flat; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vantage", "studio", args.model, "--no-browser", "--json", "--port", "0"]
        process = subprocess.Popen([*command, "--folder", folder], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            user = ScriptedUser(json.loads(process.stdout.readline())["url"], args.words)
            samples = list(rounds(user, process.pid, args.minutes))
        finally:
            process.terminate()
            process.wait(60)
    means = quarters(samples)
    print(f"by quarters: {', '.join(f'{one:.0f}' for one in means)} MiB")
    return 1 if means[3] - means[1] > args.most else 0


if __name__ == "__main__":
    sys.exit(main())
