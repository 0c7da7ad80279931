"""Who reaches the studio: this machine, with the token of this start; and what the page's files are served as."""

from __future__ import annotations

import re

import httpx
import pytest
from fastapi.routing import APIRoute

from tests.generation.folder import chat_model
from tests.serve.studios import running
from vantage.errors import BadInput
from vantage.serve import Access, ServedModel, ServerSettings
from vantage.serve.studio import create_studio, page_files
from vantage.serve.studio.page_files import with_token
from vantage.serve.studio.pages import routers
from vantage.serve.studio.token_check import TokenCheck

MODELS = (ServedModel("tiny", "tiny"),)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with running(tmp_path_factory.mktemp("studio")) as it:
        yield it


def api() -> list[tuple[str, str]]:
    """Every route of the studio's API, with something in the place of each parameter."""
    routes = [route for router in routers() for route in router.routes if isinstance(route, APIRoute)]
    assert all(route.path.startswith("/studio/api/") for route in routes)
    assert len(routes) > 24
    return [(method, re.sub(r"\{[^}]*\}", "0123456789abcdef", r.path)) for r in routes for method in r.methods]


def code(answer: httpx.Response) -> str:
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return answer.json()["error"]["code"]


def refused(it, code_: str, token: str | None, **headers: str) -> None:
    with it.http(token, **headers) as http:
        for method, path in [*api(), ("GET", "/studio/api"), ("POST", "/studio/api/no/such/thing")]:
            answer = http.request(method, path, json={} if method == "POST" else None)
            assert answer.status_code == 403, (method, path)
            assert code(answer) == code_, (method, path)
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("token", [None, "wrong", "x" * 43, "Bearer x"])
def test_every_route_needs_the_token(tiny, token):
    refused(tiny, "wrong_token", token)
    almost = tiny.studio.token[:-1] + ("x" if tiny.studio.token[-1] != "x" else "y")
    refused(tiny, "wrong_token", almost)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example"]
)
def test_another_page_reaches_nothing_even_with_the_token(tiny, origin):
    refused(tiny, "origin_not_allowed", "", Origin=origin)
    with tiny.http(Origin=origin) as http:
        assert http.get("/studio/").status_code == 403  # nor the page that has the token in it


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8000"])
def test_another_name_reaches_nothing_even_with_the_token(tiny, host):
    refused(tiny, "host_not_allowed", "", Host=host)
    with tiny.http(Host=host) as http:
        assert http.get("/studio/").status_code == 403


def test_our_own_page_does(tiny):
    with tiny.http(Origin=tiny.url) as http:
        assert http.get("/studio/api/models").status_code == 200
        assert code(http.get("/studio/api/nothing")) == "not_found"
        kind = {"Content-Type": "text/plain"}  # what a form of another page could send
        assert http.post("/studio/api/chat", content=b"{}", headers=kind).status_code == 415
        assert (
            code(http.post("/studio/api/chat", json={"model": "tiny", "message": "a", "x": 1})) == "unknown_parameter"
        )


def test_the_token_is_compared_in_constant_time_and_new_at_each_start(tiny):
    import inspect

    assert "hmac.compare_digest(digest, self._digest)" in inspect.getsource(TokenCheck.__call__)
    tokens = {create_studio(ServerSettings(MODELS)).state.studio.token for _ in range(3)} | {tiny.studio.token}
    assert len(tokens) == 4
    assert min(map(len, tokens)) >= 32


def test_the_server_has_none_of_it(small):
    """Not ``vantage serve``, whatever is asked and however."""
    with small.http() as http:
        for method, path in [*api(), ("GET", "/"), ("GET", "/studio"), ("GET", "/studio/")]:
            assert code(http.request(method, path, json={} if method == "POST" else None)) == "not_found", path


def test_the_studio_serves_openai_as_well(tiny):
    with tiny.http(None) as http:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
        assert http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 1
        described = http.get("/openapi.json").json()["paths"]
    assert "/v1/attention" in described
    assert not [path for path in described if "studio" in path]


@pytest.mark.parametrize(
    "settings",
    [
        ServerSettings(MODELS, host="0.0.0.0", access=Access(allow_open=True)),
        ServerSettings(MODELS, access=Access(keys=("a-long-key",))),
        ServerSettings(MODELS, access=Access(hosts=("studio.example",))),
        ServerSettings(MODELS, access=Access(origins=("https://studio.example",))),
    ],
)
def test_only_this_machine(settings):
    with pytest.raises(BadInput, match=r"127\.0\.0\.1 only|this machine alone"):
        create_studio(settings)


# ---- the page


@pytest.fixture
def built(tmp_path, monkeypatch):
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text('<head lang="en">\n<meta name="vantage-token" content="" /></head>')
    for name in ("assets/app-1a2b.js", "assets/app-1a2b.css", "icon.svg", "assets/font-9.woff2", "odd.xyz"):
        (page / name).write_text(name)
    (tmp_path / "secret.js").write_text("secret")
    (page / "link.js").symlink_to(tmp_path / "secret.js")
    monkeypatch.setattr(page_files, "PAGE", page)
    return page


def test_the_page_and_its_token(tiny, built):
    with tiny.http(None) as http:
        for path in ("/", "/studio"):
            answer = http.get(path)
            assert answer.status_code == 307
            assert answer.headers["location"] == "/studio/"
        answer = http.get("/studio/")
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["cache-control"] == "no-store"
        assert f'<meta name="vantage-token" content="{tiny.studio.token}">' in answer.text
        assert 'content=""' not in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy  # nothing from elsewhere
        assert http.get("/studio/index.html").status_code == 404  # it would be the page without its token
        assert http.head("/studio/").status_code == 200


@pytest.mark.parametrize(
    ("path", "kind", "cache"),
    [
        ("assets/app-1a2b.js", "text/javascript; charset=utf-8", "immutable"),
        ("assets/app-1a2b.css", "text/css; charset=utf-8", "immutable"),
        ("assets/font-9.woff2", "font/woff2", "immutable"),
        ("icon.svg", "image/svg+xml", "no-cache"),
        ("odd.xyz", "application/octet-stream", "no-cache"),
    ],
)
def test_files_of_the_page(tiny, built, path, kind, cache):
    with tiny.http(None) as http:
        answer = http.get(f"/studio/{path}")
    assert answer.text == path
    assert answer.headers["content-type"] == kind
    assert cache in answer.headers["cache-control"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["nothing.js", "..%2fsecret.js", "%2e%2e/secret.js", "link.js", "assets", "assets/", "%00"]
)
def test_no_path_leaves_the_page(tiny, built, path):
    with tiny.http(None) as http:
        answer = http.get(f"/studio/{path}")
    assert answer.status_code == 404
    assert code(answer) == "not_found"


def test_a_page_that_is_not_built_says_how(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(page_files, "PAGE", tmp_path / "none")
    with tiny.http(None) as http:
        answer = http.get("/studio/")
        assert answer.status_code == 503
        assert "make web" in answer.text
        assert http.get("/v1/models").status_code == 200


def test_the_token_finds_its_place():
    meta = '<meta name="vantage-token" content="t&lt;">'
    for text in ('<head><meta name="vantage-token" content="" /></head>', "<head></head>", '<HEAD id="x"></HEAD>'):
        made = with_token(text, "t<")
        assert made.count(meta) == 1
        assert made.index(meta) < made.lower().index("</head>")


# ---- models that are not there


@pytest.mark.sampled
def test_a_model_that_fails_to_load_is_said(tmp_path):
    tries = []

    def load(served):
        tries.append(served.name)
        if served.name == "broken":
            raise FileNotFoundError("no config.json in /models/broken")
        return chat_model()

    with running(tmp_path, "broken", "tiny", load=load, troubles={"broken": "it could not be brought"}) as it:
        with it.http() as http:
            listed = http.get("/studio/api/models").json()
            assert listed["default"] == "broken"
            assert listed["models"][0]["error"] == "it could not be brought"
            answer = http.post("/studio/api/models/load", json={"name": "broken"})
            assert answer.status_code == 500
            assert code(answer) == "model_load_failed"
            assert "no config.json in /models/broken" in answer.json()["error"]["message"]
            for path, body in (("chat", {"message": "a"}), ("attention", {"text": "a"}), ("tokens", {"text": "a"})):
                answer = http.post(f"/studio/api/{path}", json={"model": "broken", **body})
                assert code(answer) == "model_load_failed", path
            first, second = http.get("/studio/api/models").json()["models"]
            assert "no config.json" in first["error"]
            assert (first["loaded"], first["kind"], second["error"]) == (False, None, None)
            loaded = http.post("/studio/api/models/load", json={"name": "tiny"}).json()
            assert (loaded["loaded"], loaded["kind"], loaded["chat"]) == (True, "decoder", True)
            assert (loaded["layers"], loaded["heads"], loaded["kv_heads"], loaded["position"]) == (2, 4, 2, "rope")
            assert code(http.post("/studio/api/models/load", json={"name": "../tiny"})) == "model_not_found"
        with it.http(None) as http:  # strangers' words for the same: no paths
            answer = http.post("/v1/completions", json={"model": "broken", "prompt": "a"})
            assert "config.json" not in answer.text
    assert tries.count("broken") >= 4
