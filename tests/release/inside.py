"""What tests/release/test_wheel.py runs in its chroot: install the wheel, use it, and say what worked.

Python's own library and nothing else. The last line that it prints is a JSON object.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

PATH = "/venv/bin"
ENVIRONMENT = {"PATH": PATH, "HOME": "/home", "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
SECONDS = 600


def model() -> str:
    (file,) = Path("/models").glob("*.gguf")
    return str(file)


def loopback() -> None:
    """A new network has one interface, which is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        up = struct.pack("16sH14s", b"lo", 0x1 | 0x40, b"")
        fcntl.ioctl(made, 0x8914, up)  # SIOCSIFFLAGS: up and running


def check_place() -> None:
    for program in ("cc", "gcc", "g++", "c++", "clang", "node", "npm", "git"):
        assert shutil.which(program, path=f"{PATH}:/usr/bin:/bin:/usr/local/bin") is None, program
    try:
        socket.create_connection(("1.1.1.1", 443), timeout=5).close()
    except OSError:
        return
    raise AssertionError("there is a network")


def install() -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "/venv"], check=True)
    packages = next(Path("/venv/lib").glob("python*/site-packages"))
    (packages / "deps.pth").write_text("/deps\n")
    (wheel,) = Path("/wheels").glob("*.whl")
    vantage("python", "-m", "pip", "install", "--no-index", f"{wheel}[serve]")


def vantage(*command: str, text: str | None = None) -> str:
    done = subprocess.run(
        [f"{PATH}/{command[0]}", *command[1:]],
        input=text,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd="/home",
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[str]:
    """Its address, until it is told to end."""
    command = [f"{PATH}/vantage", *arguments, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd="/home")
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()


def fetch(url: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return answer.read().decode()


def native() -> bool:
    """Steps run in the kernels that the wheel carries: nothing was compiled."""
    options = "max_tokens=3, stats=True"
    load = f"import vantage as vt; model = vt.load({model()!r}, dtype='auto')"
    code = f"{load}; print(vt.generate(model, 'A', {options}).stats.paths)"
    return "'native'" in vantage("python", "-c", code) and not Path("/home/.cache/vantage/native").exists()


def serve() -> bool:
    with server("serve", f"small={model()}") as url:
        body = {"model": "small", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        answer = json.loads(fetch(f"{url}/v1/chat/completions", body))
    return bool(answer["choices"][0]["message"]["content"].strip())


def studio() -> bool:
    with server("studio", f"small={model()}", "--no-browser") as url:
        page = fetch(url)
        script = re.search(r'<script[^>]* src="([^"]+\.js)"', page)
        assert script is not None, page[:2000]
        code = fetch(urljoin(url, script[1]))
    return 'id="app"' in page and len(code) > 1000


def compare() -> bool:
    small = ("--positions", "rope", "alibi", "--tasks", "copy", "--steps", "4", "--seeds", "1", "--test-examples", "8")
    vantage("vantage", "compare", *small, "--width", "16", "--rates", "0.001", "--out", "/tmp/compared")
    return "rope" in Path("/tmp/compared/index.html").read_text()


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a script ignore it
    loopback()
    check_place()
    os.umask(0o022)
    install()
    chat = vantage("vantage", "chat", model(), "--max-tokens", "12", "--stats", text="Say hello.\n")
    study = vantage("vantage", "study", "run", "A2")
    report = {
        "chat": "hello" in chat.lower(),
        "native": native(),
        "study": "0.33758" in study or "0.338" in study,
        "compare": compare(),
        "serve": serve(),
        "studio": studio(),
    }
    print(chat, study, file=sys.stderr)
    print(json.dumps(report, sort_keys=True))


if __name__ == "__main__":
    main()
