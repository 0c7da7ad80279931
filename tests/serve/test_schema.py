"""The OpenAPI description is what the server does: schemathesis makes requests up from it, good ones and bad ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.running import KEY

# What a schema cannot say (a prompt longer than the context, two fields that differ) is refused too, so
# `positive_data_acceptance` cannot hold. Everything else must.
LEFT_OUT = "positive_data_acceptance"


def explored(server, folder: Path, phases: str, examples: int) -> int:
    """Runs schemathesis and returns how many requests the server got."""
    before = server.metric("vantage_requests_total")
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{server.url}/openapi.json",
        "--header",
        f"Authorization: Bearer {KEY}",
        "--exclude-checks",
        LEFT_OUT,
        "--max-examples",
        str(examples),
        "--seed",
        "1",
        "--phases",
        phases,
        "--generation-database",
        "none",
        "--suppress-health-check",
        "all",
        "--request-timeout",
        "60",
        "--no-color",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return int(server.metric("vantage_requests_total") - before)


@pytest.mark.sampled
def test_schemathesis_finds_nothing(small, folder):
    assert explored(small, folder, "fuzzing", examples=12) > 80
    assert small.metric("vantage_requests_total", route="/v1/chat/completions", status="200") > 0


@pytest.mark.slow
def test_schemathesis_finds_nothing_in_thousands(small, folder):
    """Some 1,700 cases are the corners of the schema; the rest is made up."""
    assert explored(small, folder, "examples,coverage,fuzzing", examples=600) >= 5000


def test_the_description(small):
    with small.http() as http:
        told = http.get("/openapi.json").json()
    assert "/v1/attention" in told["paths"]
    assert "422" not in json.dumps(told["paths"])
    posts = [route["post"] for route in told["paths"].values() if "post" in route]
    for post in posts:
        (name,) = [
            part["$ref"].rpartition("/")[2] for part in [post["requestBody"]["content"]["application/json"]["schema"]]
        ]
        assert told["components"]["schemas"][name]["additionalProperties"] is False
        assert post["security"] == [{"bearer": []}]


def test_a_path_names_all_of_its_methods(small):
    """Of each path that has several, whichever of its routes comes first."""
    with small.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
        assert len(paths["/v1/responses/{response_id}"]) == 2
        for path, methods in paths.items():
            answer = http.options(path)
            assert answer.status_code == 405
            assert answer.headers["allow"] == ", ".join(sorted(name.upper() for name in methods))
