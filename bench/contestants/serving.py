"""A server over SmolLM2's GGUF file, in a process of its own, and clients that read its streams.

Nothing but Python's own modules is needed here: the same clients ask both servers. They share the cores with the
server, as clients on the same machine do, so they do as little as they can: find the end of an answer.
"""

import asyncio
import atexit
import ctypes
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))
from smollm2_file import default_file
from smollm2_text import text

PROMPT = 40  # words, some 50 tokens
TURNS = (430, 430, 430, 430, 30)  # words of each: the fifth turn of a chat, a short one, begins at some 2,000 tokens
SAID = 20  # tokens of each answer in a chat
START_S = 120


def setup(who: str, clients: int = 0, answer: int = 64, threads: int = 2) -> None:
    """``clients``: 0 measures the fifth turn of a chat. ``answer``: tokens of each."""
    global count, length, port, rounds
    count, length, port, rounds = clients, answer, free_port(), 0
    program = {
        "vantage": ["-m", "vantage", "serve", f"model={default_file()}", "--port", str(port), "--log-level", "warning"],
        # as it is started it keeps the logits of whole prompts, and a new request cuts the one before it short:
        # the first makes it slower, the second loses answers
        "llama.cpp": [
            *("-m", "llama_cpp.server", "--model", default_file(), "--model_alias", "model", "--host", "127.0.0.1"),
            *("--port", str(port), "--n_threads", str(threads), "--n_threads_batch", str(threads), "--n_ctx", "4096"),
            *("--logits_all", "False", "--interrupt_requests", "False", "--verbose", "False"),
        ],
    }[who]
    server = subprocess.Popen(
        [sys.executable, "-P", *program], stdout=subprocess.DEVNULL, stderr=sys.stderr, preexec_fn=end_with_us
    )
    atexit.register(stop, server)
    deadline = time.monotonic() + START_S
    while True:
        try:
            whole("/v1/completions", {"prompt": "The sea", "max_tokens": 1})  # the first one loads the model
            return
        except OSError as e:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{who} does not answer: {e}") from e
            time.sleep(0.1)


def round() -> dict[str, list[float]]:
    """Each time with other words, so that no server has computed a prompt before."""
    global rounds
    rounds += 1
    if not count:
        return {"seconds": [fifth_turn()]}
    start = perf_counter()
    tokens = asyncio.run(crowd())
    seconds = perf_counter() - start
    return {"seconds": [seconds / tokens], "tokens_per_second": [tokens / seconds], "tokens": [tokens]}


# ---- many clients


async def crowd() -> int:
    """Everybody asks at once. The tokens of all answers."""
    return sum(await asyncio.gather(*(client(i) for i in range(count))))


async def client(i: int) -> int:
    body = json.dumps({**request_body(words(i, PROMPT)), "max_tokens": length, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read(-1)
    writer.close()
    if b" 200 " not in answer[:16] or b"data: [DONE]" not in answer:
        raise RuntimeError(f"no whole answer: {answer[:300]!r} … {answer[-300:]!r}")
    if b'"length"' in answer:
        return length
    return answer.count(b'"text"')  # it ended by itself: one event for each token


def request_body(prompt: str) -> dict[str, object]:
    return {"model": "model", "prompt": prompt, "temperature": 0}


def words(i: int, n: int) -> str:
    """So many words of the text, in an order that no other client and no other round has."""
    them = text().split()
    at = (7 * rounds + 131 * i) % (len(them) - n)
    return f"{rounds} and {i}: " + " ".join(them[at : at + n])


# ---- a chat


def fifth_turn() -> float:
    """Seconds from the question of the fifth turn to the first text of its answer."""
    messages = []
    for turn in range(4):
        messages.append({"role": "user", "content": words(turn, TURNS[turn])})
        answer = whole("/v1/chat/completions", {"messages": messages, "max_tokens": SAID})
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    messages.append({"role": "user", "content": words(4, TURNS[4])})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    start = perf_counter()
    post(connection, "/v1/chat/completions", {"messages": messages, "max_tokens": SAID, "stream": True})
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            seconds = perf_counter() - start
            response.read()
            connection.close()
            return seconds
    raise RuntimeError("the fifth turn was not answered")


# ---- talking to it


def whole(path: str, body: dict[str, object]) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        post(connection, path, body)
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path} answered {response.status}: {answer[:500]!r}")
    return json.loads(answer)


def post(connection: http.client.HTTPConnection, path: str, body: dict[str, object]) -> None:
    body = {"model": "model", "temperature": 0, **body}
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def end_with_us() -> None:
    """In the server, before it begins: on Linux it is told to end when this process does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def stop(server: subprocess.Popen) -> None:
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
