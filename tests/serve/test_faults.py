"""Things go wrong in a real server: who is hit, who is not, and that it goes on."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import threading

import httpx
import openai
import pytest

from tests.processes import PATIENCE, until
from tests.serve.running import serving, tiny

ASK = [{"role": "user", "content": "hello world"}]
LONG = {"model": "tiny", "messages": ASK, "temperature": 0, "logit_bias": {"0": -100, "1": -100, "2": -100}}


@pytest.fixture(scope="module")
def control(folder):
    return folder / "faults"


@pytest.fixture(scope="module")
def faulty(folder, control):
    """No prefixes are kept: blocks in use are those of requests."""
    for name in ("vanishing", "spare"):
        shutil.copytree(tiny(folder), folder / name)
    models = [f"tiny={tiny(folder)}", f"vanishing={folder / 'vanishing'}"]
    args = ["--capacity", "2048", "--no-share-prefixes", "--rows", "4", "--queue", "2", "--stall-seconds", "1"]
    env = {"FAULTS": str(control), "SLOWLY": "0.002"}
    with serving(folder, *models, *args, module="tests.serve.faulty", env=env) as it:
        yield it


def blocks(server) -> float:
    return server.metric("vantage_cache_blocks", None, state="used")


class Stream(threading.Thread):
    """Reads a stream to its end, whatever that is."""

    def __init__(self, server, **options):
        super().__init__()
        self.client, self.options = server.client(), options
        self.texts: list[str] = []
        self.error: Exception | None = None
        self.finish: str | None = None
        self.begun = threading.Event()
        self.start()

    def run(self):
        try:
            for chunk in self.client.chat.completions.create(**self.options, stream=True):
                self.texts.append(chunk.choices[0].delta.content or "")
                self.finish = chunk.choices[0].finish_reason
                if len(self.texts) > 2:
                    self.begun.set()
        except openai.APIError as e:
            self.error = e
        finally:
            self.begun.set()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("word", "code"),
    [("step", "step_failed"), ("memory", "out_of_memory"), ("allocator", "out_of_memory"), ("engine", "step_failed")],
)
def test_a_step_that_fails(faulty, control, word, code):
    """Its requests get a typed error that gives nothing away, and the next ones are served."""
    wanted = faulty.client().chat.completions.create(**LONG, max_tokens=20).choices[0].message.content
    streams = [Stream(faulty, **LONG, max_tokens=1500) for _ in range(3)]
    for stream in streams:
        stream.begun.wait(PATIENCE)
    control.write_text(word)
    for stream in streams:
        stream.join(PATIENCE)
        assert stream.error is not None
        assert stream.error.body["code"] == code
        assert "secret" not in str(stream.error)
    control.write_text(word)
    with pytest.raises(openai.InternalServerError) as caught:
        faulty.client().chat.completions.create(**LONG, max_tokens=20)  # not a stream: the status says it
    assert caught.value.body["type"] == "server_error"
    again = faulty.client().chat.completions.create(**LONG, max_tokens=20)
    assert again.choices[0].message.content == wanted
    until(lambda: blocks(faulty) == 0)
    assert any(line["event"] == "fault" and line["model"] == "tiny" for line in faulty.log())


def test_a_client_that_leaves_frees_its_blocks(faulty):
    for stream in (True, False):
        with httpx.Client(base_url=faulty.url, timeout=PATIENCE) as http:
            if stream:
                with http.stream(
                    "POST", "/v1/chat/completions", json={**LONG, "max_tokens": 1500, "stream": True}
                ) as r:
                    lines = r.iter_lines()  # kept: whoever lets go of it hangs up
                    next(lines)
                    until(lambda: blocks(faulty) > 0)
            else:
                with contextlib.suppress(httpx.ReadTimeout):
                    http.post("/v1/chat/completions", json={**LONG, "max_tokens": 1500}, timeout=0.3)
        until(lambda: blocks(faulty) == 0)
        until(lambda: faulty.metric("vantage_busy", None) == 0)


def test_a_stalled_reader_is_cut_off(faulty):
    """It reads nothing. Others go on, its blocks come back, and memory does not grow."""
    host, port = faulty.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, "max_tokens": 1900, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    before = faulty.memory()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((host, int(port)))
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: blocks(faulty) > 0)
        assert faulty.client().chat.completions.create(**LONG, max_tokens=10).choices[0].finish_reason == "length"
        until(lambda: blocks(faulty) == 0)
        until(lambda: faulty.metric("vantage_busy", None) == 0)
    assert faulty.memory() - before < 32 * 2**20
    (line,) = [line for line in faulty.log() if line["event"] == "request" and line.get("finish") == ["cut"]][-1:]
    assert line["completion_tokens"] < 1900


def test_files_that_vanish_while_loading(folder, faulty, control):
    """The request that wanted the model is told; another model is served; and when the files are back, so is it."""
    client = faulty.client()
    control.write_text("vanish")
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="vanishing", prompt="a", max_tokens=2)
    assert caught.value.code == "model_load_failed"
    assert str(folder) not in str(caught.value)
    assert client.completions.create(model="tiny", prompt="a", max_tokens=2).choices
    shutil.copy(folder / "spare" / "model.safetensors", folder / "vanishing")
    assert client.completions.create(model="vanishing", prompt="a", max_tokens=2).choices


@pytest.mark.sampled
def test_overload_is_refused_at_once(faulty, control):
    """Rows and queue are full: 429 with Retry-After, long before anything has finished."""
    control.write_text("slow")
    streams = [Stream(faulty, **LONG, max_tokens=300) for _ in range(6)]
    until(lambda: faulty.metric("vantage_busy", None) == 6)
    with pytest.raises(openai.RateLimitError) as caught:
        faulty.client().chat.completions.create(**LONG, max_tokens=2)
    assert all(stream.is_alive() for stream in streams)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    until(lambda: faulty.metric("vantage_queue_waiting", None) == 2)
    assert faulty.metric("vantage_batch_rows", None) == 4
    control.unlink()
    for stream in streams:
        stream.join(PATIENCE)
    assert [stream.finish for stream in streams] == ["length"] * 6
    with pytest.raises(openai.BadRequestError):  # more than could ever run
        faulty.client().chat.completions.create(**LONG, max_tokens=2, n=5)


@pytest.mark.sampled
def test_a_time_limit(folder, control):
    """What takes too long is ended with its own error."""
    env = {"FAULTS": str(control), "SLOWLY": "0.003"}
    args = [f"tiny={tiny(folder)}", "--request-seconds", "1", "--no-share-prefixes"]
    with serving(folder, *args, module="tests.serve.faulty", env=env) as server:
        with pytest.raises(openai.InternalServerError) as caught:
            server.client().chat.completions.create(**LONG, max_tokens=3500)
        assert caught.value.status_code == 504
        until(lambda: blocks(server) == 0)


@pytest.mark.sampled
def test_sigterm_lets_answers_finish(folder, control):
    """Meanwhile new requests get 503."""
    env = {"FAULTS": str(control)}
    args = [f"tiny={tiny(folder)}", "--no-share-prefixes", "--drain-seconds", str(PATIENCE)]
    with serving(folder, *args, module="tests.serve.faulty", env=env) as server:
        control.write_text("slow")
        streams = [Stream(server, **LONG, max_tokens=150) for _ in range(4)]
        for stream in streams:
            stream.begun.wait(PATIENCE)
        control.write_text("hold")
        server.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            until(lambda: http.get("/health").status_code == 503)
            assert http.get("/health").json() == {"status": "draining"}
        with pytest.raises(openai.InternalServerError) as caught:
            server.client().chat.completions.create(**LONG, max_tokens=2)
        assert caught.value.status_code == 503
        assert caught.value.code == "draining"
        assert "retry-after" in caught.value.response.headers
        control.unlink()
        for stream in streams:
            stream.join(PATIENCE)
        assert [stream.finish for stream in streams] == ["length"] * 4
        assert server.process.wait(PATIENCE) == 0
        assert [line["cut"] for line in server.log() if line["event"] == "stopped"] == [0]


@pytest.mark.slow
def test_sigterm_has_a_limit(folder, control):
    env = {"FAULTS": str(control), "SLOWLY": "0.02"}
    args = [f"tiny={tiny(folder)}", "--drain-seconds", "0.5"]
    with serving(folder, *args, module="tests.serve.faulty", env=env) as server:
        stream = Stream(server, **LONG, max_tokens=3000)
        stream.begun.wait(PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        stream.join(PATIENCE)
        assert stream.error is not None
        assert stream.error.body["code"] == "unloaded"
