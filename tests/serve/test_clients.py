"""litellm and langchain-openai by base URL alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.serve.environments import python_with
from tests.serve.running import KEY, serving, tiny

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def python(request) -> Path:
    return python_with(request, HERE / "clients.txt", "clients")


@pytest.mark.slow
def test_other_clients(folder, python):
    with serving(folder, f"tiny={tiny(folder)}", "--capacity", "1024", env={"VANTAGE_API_KEY": KEY}) as server:
        drive(server, python)


def drive(server, python):
    wanted = server.client().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=8, temperature=0
    )
    ask = [str(python), str(HERE / "clients.py"), f"{server.url}/v1", KEY]
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    text = wanted.choices[0].message.content
    assert {told[name] for name in ("litellm", "litellm_stream", "langchain", "langchain_stream")} == {text}
    assert told["litellm_error"] == "AuthenticationError"
    assert isinstance(told["langchain_schema"]["big"], bool)
    assert isinstance(told["langchain_tool"]["big"], bool)
