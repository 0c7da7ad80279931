"""Every line of docs/security.md that is about requests, against a real server."""

from __future__ import annotations

import http.client
import json

import httpx
import pytest

from tests.processes import PATIENCE, until
from tests.serve.running import KEY, serving, tiny

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
JSON = {"Content-Type": "application/json"}
ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/attention"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/nothing"),
    ("OPTIONS", "/v1/models"),
    ("GET", "/docs"),
]


def code(answer: httpx.Response) -> str:
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return answer.json()["error"]["code"]


# ---- who


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("said", [None, "", "Bearer", "Bearer wrong-wrong", f"Basic {KEY}", f"Bearer {KEY}x", KEY])
def test_every_route_needs_the_key(small, method, path, said):
    headers = {} if said is None else {"Authorization": said}
    with small.http(None) as http:
        answer = http.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert code(answer) == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_health_needs_none_and_names_no_model(small):
    with small.http(None) as http:
        answer = http.get("/health")
    assert answer.json() == {"status": "ok"}


def test_every_key_is_compared_in_constant_time():
    """The comparison is hmac's, over digests of equal length, and every key has its turn."""
    import inspect

    from vantage.serve.guard import RequestGuard

    source = inspect.getsource(RequestGuard._check_key)
    assert "[hmac.compare_digest(digest, key) for key in self._keys]" in source


def test_both_keys_work(small):
    for key in (KEY, "another-key"):
        with small.http(key) as http:
            assert http.get("/v1/models").status_code == 200


# ---- from where


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io", "a@b", ""]
)
def test_a_name_that_is_not_ours_is_refused(small, host):
    """DNS rebinding: the page's own name, made to point here."""
    for path in ("/health", "/v1/models"):
        with small.http() as http:
            answer = http.get(path, headers={"Host": host})
        assert answer.status_code in (400, 403)
        if answer.status_code == 403:
            assert code(answer) == "host_not_allowed"


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_names_that_are_ours(small, host):
    with small.http() as http:
        assert http.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://"])
def test_other_pages_are_refused(small, origin):
    with small.http() as http:
        for answer in (
            http.get("/v1/models", headers={"Origin": origin}),
            http.post("/v1/chat/completions", json=CHAT, headers={"Origin": origin}),
            http.options("/v1/models", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}),
        ):
            assert answer.status_code == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]


def test_our_own_page_is_not(small):
    with small.http() as http:
        assert http.get("/v1/models", headers={"Origin": small.url}).status_code == 200


@pytest.mark.sampled
def test_a_page_that_was_allowed(folder):
    """CORS for the origins that were named and for no others. And limits on bodies, and prompts in the log if asked."""
    args = [f"tiny={tiny(folder)}", "--allow-origin", "https://ours.example", "--allow-host", "llm.example"]
    with (
        serving(folder, *args, "--body-bytes", "2048", "--body-seconds", "0.5", "--log-prompts") as server,
        server.http(None) as http,
    ):
        ask = {"Origin": "https://ours.example", "Access-Control-Request-Method": "POST"}
        answer = http.options("/v1/chat/completions", headers=ask)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "https://ours.example"
        assert http.get("/v1/models", headers={**ask, "Host": "llm.example"}).status_code == 200
        assert http.get("/v1/models", headers={"Origin": "https://theirs.example"}).status_code == 403
        large = http.post("/v1/completions", json={"model": "tiny", "prompt": "x" * 4096})
        assert large.status_code == 413
        assert code(large) == "body_too_large"
        chunked = http.post("/v1/completions", content=iter([b"{" * 1024] * 8), headers=JSON)
        assert chunked.status_code == 413
        assert _trickle(server.url) == 408
        for method, path in (("POST", "/nowhere"), ("GET", "/v1/models"), ("DELETE", "/v1/models/tiny")):
            for content in (b"x" * 4096, iter([b"{" * 1024] * 8)):
                assert http.request(method, path, content=content, headers=JSON).status_code == 413, (method, path)
            assert http.request(method, path, content=b"x").status_code == 415
            assert http.request(method, path, content=b"{", headers=JSON).status_code == 400
        said = 'x\n{"event": "forged"}'
        http.post("/v1/completions", json={"model": "tiny", "prompt": said, "max_tokens": 1})
        line = server.logged("prompt")  # in one line, whatever it holds
        assert line["prompt"]["prompt"] == said
        assert line["answer"][0]["finish_reason"] == "length"


def test_a_request_without_a_body_needs_no_kind_of_body(small):
    with small.http() as http:
        assert http.get("/v1/models", headers=JSON).status_code == 200
        assert http.post("/health").status_code == 405
        assert http.post("/v1/completions").status_code == 400
        assert http.request("GET", "/v1/models", content=b"{}", headers=JSON).status_code == 200


def _trickle(url: str) -> int:
    """A body that never comes."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "100")
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


# ---- what

HUGE = [-1, 2**31, 2**63, 2**64, 10**400, -(2**63)]
NUMBERS = {
    "n": [0, *HUGE, 1.5, "1", True],
    "seed": [-1, 2**63, 10**400, 0.5],
    "max_tokens": [0, *HUGE],
    "temperature": [-0.1, 2.1, 1e308, 10**400, "0", True],
    "top_p": [0, -1, 1.1],
    "min_p": [-1, 2],
    "top_k": [0, -1, 2**63],
    "presence_penalty": [-2.1, 2.1, 1e300],
    "frequency_penalty": [-2.1, 2.1],
    "repetition_penalty": [0, -1, 11],
    "logit_bias": [{"x": 1}, {"-1": 1}, {"1": 101}, {"999999": 1}, {str(2**63): 1}, {str(i): 1 for i in range(1025)}],
    "stop": [["a"] * 5, "", [""], "x" * 257, [1]],
    "top_logprobs": [-1, 21, 2**63],
    "messages": [[], None, [{"role": "root", "content": "x"}], [{"role": "user", "content": "x"}] * 1025],
    "model": ["", "x" * 257, None, 7],
    "regex": ["", "a" * 8193, "(", "(a{1000}){1000}", "(?=a)"],
    "user": ["x" * 513],
    "tools": [[{"type": "function", "function": {"name": "a b"}}], [{"type": "x"}]],
    "tool_choice": ["required", {"type": "function", "function": {"name": "f"}}],
    "stream_options": [{"include_usage": True}],
    "echo": [True],
    "store": [True],
    "audio": [{}],
    "metadata": [{"a": "b"}],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_and_sizes_out_of_range(small, name):
    with small.http() as http:
        for value in NUMBERS[name]:
            body = json.dumps({**CHAT, "logprobs": True, name: value})
            answer = http.post("/v1/chat/completions", content=body, headers=JSON)
            assert 400 <= answer.status_code < 500, (name, value)
            code(answer)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5000])
def test_what_is_no_number(small, number):
    body = json.dumps({**CHAT, "temperature": 12345}).replace("12345", number)
    with small.http() as http:
        answer = http.post("/v1/chat/completions", content=body, headers=JSON)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"x"',
        b'{"model":"tiny","prompt":"\\ud800"}',
        b"1" * 9999,
    ],
)
def test_what_is_no_json(small, body):
    with small.http() as http:
        answer = http.post("/v1/completions", content=body, headers=JSON)
        assert answer.status_code == 400
        code(answer)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
            assert http.post("/v1/completions", content=body, headers={"Content-Type": kind}).status_code == 415


def test_a_prompt_longer_than_the_context(small):
    with small.http() as http:
        for body in (
            {"model": "tiny", "prompt": "cat " * 2048},
            {"model": "tiny", "prompt": [5] * 2048},
            {"model": "tiny", "prompt": "a", "max_tokens": 2048},
        ):
            assert code(http.post("/v1/completions", json=body)) == "context_length_exceeded"
        assert http.post("/v1/completions", json={"model": "tiny", "prompt": [2**31 - 1]}).status_code == 400


def nested(depth: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


SCHEMAS = {
    "false": {"not": {}},
    "wide": {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(600)}},
    "long": {"type": "string", "description": "x" * 70_000},
    "many": {"enum": ["x" + str(i) for i in range(12_000)]},
    "remote": {"$ref": "http://evil.example/schema.json"},
    "file": {"$ref": "file:///etc/passwd"},
    "deep": nested(400),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_that_would_cost_too_much(small, name):
    """Refused, and without a step for it."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[name]}}
    with small.http() as http:
        answer = http.post("/v1/chat/completions", json={**CHAT, "response_format": form})
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "smollm2", "file:///etc/passwd", "tiny\0"])
def test_no_name_becomes_a_path(small, name):
    with small.http() as http:
        answer = http.post("/v1/completions", json={"model": name, "prompt": "a"})
        assert answer.status_code == 404
        assert code(answer) == "model_not_found"
        assert http.get(f"/v1/models/{name.replace(chr(0), '%00')}").status_code == 404


PATTERNS = ["((a{1,999}){1,999}){1,999}", "(a|b|ab)*c{500}(x|y|xy)*", "(.*.*.*.*)*z"]


@pytest.mark.sampled
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_that_would_take_for_ever(small, pattern):
    """Answered or refused, within the work that a grammar may do, and others are served meanwhile."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": pattern}}}
    with small.http() as http:
        for extra in ({"regex": pattern}, {"response_format": form}):
            answer = http.post("/v1/chat/completions", json={**CHAT, **extra, "max_tokens": 40})
            assert answer.status_code in (200, 400)
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 200


# ---- what comes out


def test_logs_hold_no_prompt_and_no_key(small):
    before = len(small.log())
    with small.http() as http:
        http.post("/v1/completions", json={"model": "tiny", "prompt": "a-secret-prompt", "max_tokens": 1})
        answer = http.post(
            "/v1/completions", json={"model": "tiny", "prompt": "a-secret-prompt", "n": "a-secret-prompt"}
        )
        assert "a-secret-prompt" not in answer.text

    def requests() -> list[dict]:
        return [line for line in small.log()[before:] if line.get("route") == "/v1/completions"]

    until(lambda: len(requests()) >= 2)  # a line is written after its answer was sent, so it may come later
    log = small.raw_log()
    assert "a-secret-prompt" not in log
    assert KEY not in log
    line = next(line for line in requests() if line["status"] == 200)
    assert {"id", "route", "model", "prompt_tokens", "completion_tokens", "total_ms", "status", "key"} <= set(line)


def test_errors_give_no_paths_away(small, folder):
    with small.http() as http:
        for answer in (http.get("/v1/models"), http.get("/metrics"), http.get("/openapi.json")):
            assert str(folder) not in answer.text


def test_prefixes_never_cross_keys(real):
    """The same long prompt: the second time it is there for the key that asked, and for no other. What is read anew is
    counted, not timed: it is what another key could time."""

    def prefilled() -> float:
        return real.metric("vantage_tokens_total", kind="prefilled", model="smollm2")

    def ask(prompt: str, key: str) -> tuple[int, float]:
        before = prefilled()
        with real.http(key) as http:
            said = {"model": "smollm2", "prompt": prompt, "max_tokens": 1, "temperature": 0}
            usage = http.post("/v1/completions", json=said).raise_for_status().json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        until(lambda: prefilled() - before >= usage["prompt_tokens"] - cached)  # counted after the answer is sent
        return cached, prefilled() - before

    for key in (KEY, "another-key"):
        ask("a", key)  # the model is there, and so are both keys
    prompt = "Zebras! The quick brown fox jumps over the lazy dog, and so on. " * 16
    first, again, other = ask(prompt, KEY), ask(prompt, KEY), ask(prompt, "another-key")
    assert first[0] < 4  # a beginning that another test had
    assert again[0] > 180
    assert other[0] < 4
    assert first[1] > 180
    assert again[1] < first[1] / 3
    assert other[1] > first[1] - 4  # as if nobody had asked before
