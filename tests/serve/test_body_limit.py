"""A body over the limit is refused with an answer that the client can read, whether or not it is still sending."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import openai
import pytest

from tests.serve.running import KEY, Server, serving, tiny

LIMIT, LARGE = 4096, 8 * 2**20
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(folder):
    options = ["--body-bytes", str(LIMIT), "--capacity", "128"]
    with serving(folder, f"tiny={tiny(folder)}", *options, env={"VANTAGE_API_KEY": KEY}) as it:
        yield it


def connected(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def head(length: str, *more: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", f"Authorization: Bearer {KEY}"]
    return "\r\n".join([*lines, "Content-Type: application/json", length, *more, "", ""]).encode()


def read_all(sock: socket.socket) -> tuple[int, dict, bytes]:
    """Status, headers and body of an answer after which the connection is closed."""
    data = b""
    while part := sock.recv(65536):
        data += part
    first, _, body = data.partition(b"\r\n\r\n")
    status, *lines = first.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(status.split()[1]), headers, body


def check(status: int, headers: dict, body: bytes) -> None:
    assert status == 413
    assert headers["connection"] == "close"
    error = json.loads(body)["error"]
    assert error["code"] == "body_too_large"
    assert f"{LIMIT:,} bytes" in error["message"]


@pytest.mark.sampled
@pytest.mark.parametrize("slow", [False, True])
def test_a_client_that_sends_it_all_before_it_reads(server, slow):
    """As most do: the answer lies there when they look, and no reset has taken it away."""
    with connected(server) as sock:
        sock.sendall(head(f"Content-Length: {LARGE}"))
        for _ in range(LARGE // 2**16):
            sock.sendall(b"x" * 2**16)
            time.sleep(0.005 if slow else 0)
        check(*read_all(sock))


def test_chunks_are_counted(server):
    with connected(server) as sock:
        sock.sendall(head("Transfer-Encoding: chunked"))
        for _ in range(LARGE // 2**16):
            sock.sendall(b"10000\r\n" + b"x" * 2**16 + b"\r\n")
        sock.sendall(b"0\r\n\r\n")
        check(*read_all(sock))


def test_the_answer_comes_before_the_body_has(server):
    """With Content-Length it is known at once: a client that looks up while it sends need not send the rest."""
    with connected(server) as sock:
        sock.sendall(head(f"Content-Length: {LARGE}") + b"x" * 100)
        check(*read_all(sock))  # it ends because nothing more is sent, and in order


def test_expect_100_continue(server):
    """Who asks first is told no, and sends nothing; who may is told to go on."""
    with connected(server) as sock:
        sock.sendall(head(f"Content-Length: {LARGE}", "Expect: 100-continue"))
        check(*read_all(sock))
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
    with connected(server) as sock:
        sock.sendall(head(f"Content-Length: {len(body)}", "Expect: 100-continue", "Connection: close"))
        assert sock.recv(65536).startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        status, _, answer = read_all(sock)
        assert status == 200
        assert json.loads(answer)["object"] == "text_completion"


def test_one_that_never_ends_is_cut_off(server):
    """What is read and thrown away has a bound as well."""
    sent, chunk = 0, b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    with connected(server) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(head("Transfer-Encoding: chunked"))
        while sent < 2**30:
            sock.sendall(chunk)
            sent += 2**20
    assert 32 * 2**20 < sent < 512 * 2**20
    with server.http() as http:
        assert http.get("/health").status_code == 200


def test_httpx_and_the_official_client(server):
    with server.http() as http:
        for content in (b"x" * LARGE, iter([b"x" * 2**16] * (LARGE // 2**16))):
            answer = http.post("/v1/completions", content=content, headers=JSON)
            check(answer.status_code, dict(answer.headers), answer.content)
        ask = {"model": "tiny", "prompt": "a", "max_tokens": 1}
        assert http.post("/v1/completions", json=ask).status_code == 200  # on a new connection
    with pytest.raises(openai.APIStatusError) as caught:
        server.client().completions.create(model="tiny", prompt="x" * LARGE)
    assert caught.value.status_code == 413
    assert caught.value.code == "body_too_large"
