"""``vantage serve --tensor-parallel 2``: what one server answers, and what becomes of it when a process dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import vantage as vt
from tests.processes import PATIENCE, ROOT, start
from tests.serve.running import KEY, serving, tiny
from vantage.errors import BadInput, Refused
from vantage.serve.model_group import check_divides
from vantage.serve.options import read_settings

KEYS = {"VANTAGE_API_KEY": KEY, "VANTAGE_NATIVE": "0"}
LONG = {"model": "tiny", "max_tokens": 3000, "temperature": 0, "logit_bias": {"2": -100}}
HELLO: list[Any] = [{"role": "user", "content": "hello world, the cat sat on a mat"}]


class Group:
    """Two processes, as torchrun would start them."""

    def __init__(self, folder: Path, *flags: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.errors = [folder / f"{time.monotonic_ns()}-{rank}.log" for rank in range(2)]
        command = [sys.executable, "-W", "ignore", "-m", "vantage", "serve", f"tiny={tiny(folder)}", *flags]
        self.processes: list[subprocess.Popen[str]] = []
        for rank, errors in enumerate(self.errors):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with errors.open("w") as err:
                options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": err, "text": True, "cwd": ROOT}
                environment = {**os.environ, **place, **KEYS, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
                arguments = [*command, "--tensor-parallel", "2", "--port", "0", "--json"]
                self.processes.append(start(arguments, env=environment, **options))
        stdout = self.processes[0].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, self.errors[0].read_text()
        self.url: str = json.loads(line)["url"]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def group(folder: Path, *flags: str) -> Iterator[Group]:
    made = Group(folder, *flags)
    try:
        yield made
    finally:
        made.close()


def ends(processes: list[subprocess.Popen[str]], within: float) -> list[int]:
    until = time.monotonic() + within
    return [process.wait(max(0.1, until - time.monotonic())) for process in processes]


def asked(client: openai.OpenAI) -> list[Any]:
    """Texts that differ by every way of choosing and ending."""
    found: list[Any] = []
    ask: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 24}
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9, "seed": 3, "n": 2, "top_p": 0.9},
        {"temperature": 0, "stop": ["a", "s"]},
        {"temperature": 0.8, "seed": 4, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    ]
    for way in ways:
        made = client.chat.completions.create(**{**ask, **way})
        found.append([(choice.message.content, choice.finish_reason) for choice in made.choices])
    scored = client.completions.create(
        model="tiny", prompt="the cat", max_tokens=4, temperature=0, logprobs=2, echo=True
    )
    values = scored.choices[0].logprobs
    assert values is not None
    found.append((scored.choices[0].text, [None if x is None else round(x, 3) for x in values.token_logprobs or ()]))
    return found


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.slow
def test_two_processes_answer_as_one_and_end_together(tmp_path: Path) -> None:
    with serving(tmp_path, f"tiny={tiny(tmp_path)}", env=KEYS) as one:
        wanted = asked(one.client())
    with group(tmp_path) as two, two.client() as client:
        assert asked(client) == wanted
        with client.chat.completions.create(**LONG, messages=HELLO, stream=True) as stream:
            for _, chunk in zip(range(5), stream, strict=False):
                assert chunk.choices
        # a reader that goes away, and the next one is answered
        made = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=24, temperature=0)
        assert [(made.choices[0].message.content, made.choices[0].finish_reason)] == wanted[0]
        with pytest.raises(openai.BadRequestError, match="lies over several processes"):
            client.post("/attention", body={"id": made.id, "layers": [0]}, cast_to=httpx.Response)
        for process in two.processes:  # as torchrun does
            process.send_signal(signal.SIGTERM)
        assert ends(two.processes, 30) == [0, 0], two.errors[0].read_text()


@pytest.mark.slow
def test_torchrun_starts_it_and_its_signal_ends_it(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    serve = ["-m", "vantage", "serve", f"tiny={tiny(tmp_path)}", "--tensor-parallel", "2", "--port", "0", "--json"]
    environment = {**os.environ, **KEYS, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    log = tmp_path / "log"
    with log.open("w") as err:
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": err, "text": True, "cwd": ROOT}
        process = start([sys.executable, *torchrun, *serve], env=environment, **options)
    with process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        headers = {"Authorization": f"Bearer {KEY}"}
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 8}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE)
        assert answer.json()["usage"]["completion_tokens"] == 8
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)  # with a code of torchrun's own
    assert '"event": "stopped"' in log.read_text()  # drained, not killed


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_group_and_every_request_is_told(tmp_path: Path) -> None:
    with group(tmp_path) as two, two.client() as client:
        first, second = two.processes
        with client.chat.completions.create(**LONG, messages=HELLO, stream=True) as stream:
            iterator = iter(stream)
            next(iterator)
            second.send_signal(signal.SIGKILL)
            with pytest.raises(openai.APIError, match="a process that has a share of this model is gone"):
                for _ in iterator:
                    pass
        assert ends([first], 30) != [0]
        assert "process 1 of 2 ended without a word" in two.errors[0].read_text()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_one_that_is_killed_while_nothing_is_asked_ends_the_other_within_thirty_seconds(
    killed: int, tmp_path: Path
) -> None:
    with group(tmp_path) as two:
        time.sleep(2)
        two.processes[killed].send_signal(signal.SIGKILL)
        assert ends([two.processes[1 - killed]], 30) != [0]
        reason = f"process {killed} of 2 ended without a word" if killed else "the process that holds the store"
        assert reason in two.errors[1 - killed].read_text()


@pytest.mark.parametrize(
    ("models", "flags", "reason"),
    [
        (("a", "b"), {}, "step together, in one model"),
        (("a",), {"dtype": "int8"}, "blocks are made of whole weights"),
        (("a",), {"device": "cuda"}, "on CPUs only"),
        (("a",), {"lora_modules": ("x=y",)}, "an adapter is made for whole weights"),
    ],
)
def test_what_cannot_lie_over_processes_is_refused(models: tuple[str, ...], flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        read_settings(models, {**flags, "tensor_parallel": 2}, environ={})


def test_whole_experts_need_a_group_and_experts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give --tensor-parallel as well"):
        read_settings(("a",), {"whole_experts": True}, environ={})
    settings = read_settings((str(tiny(tmp_path)),), {"whole_experts": True, "tensor_parallel": 2}, environ={})
    with pytest.raises(Refused, match="no layer of this model has experts"):
        check_divides(settings)


def test_a_model_that_does_not_divide_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    folder = tiny(tmp_path)
    settings = read_settings((str(folder),), {"tensor_parallel": 3}, environ={})
    with pytest.raises(Refused, match="do not divide among 3 processes"):
        check_divides(settings)
    check_divides(read_settings((str(folder),), {"tensor_parallel": 2}, environ={}))
    encoder = tmp_path / "encoder"
    vt.save(vt.build(vt.encoder(vocab=40, width=16, layers=1, heads=2)), encoder)
    with pytest.raises(Refused, match="only models that generate"):
        check_divides(read_settings((str(encoder),), {"tensor_parallel": 2}, environ={}))
