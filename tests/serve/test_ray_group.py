"""``vantage serve --on ray --tensor-parallel 2``: groups of two processes each, one of which is lost."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install -c constraints.txt -e '.[ray]'", allow_module_level=True)
from tests.compare.ray_nodes import Nodes
from tests.processes import until
from tests.serve.running import KEY, Server, serving, tiny
from vantage.errors import Refused
from vantage.serve.on_ray import cores_each

ASK: dict[str, Any] = {"model": "tiny", "temperature": 0, "logit_bias": {"2": -100}}
REPLICA, FOLLOWER = "ray::ServeReplica", "ray::Follower"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes(cores=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def groups(nodes: Nodes, folder: Path) -> Iterator[Server]:
    flags = ("--on", "ray", "--replicas", "2", "--tensor-parallel", "2", "--capacity", "4096")
    environment = {"VANTAGE_API_KEY": KEY, "RAY_ADDRESS": nodes.address, "RAY_AUTH_MODE": "disabled"}
    with serving(folder, f"tiny={tiny(folder)}", *flags, env=environment) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Server]:
    with serving(folder, f"tiny={tiny(folder)}", "--capacity", "4096", env={"VANTAGE_API_KEY": KEY}) as server:
        yield server


def answer(server: Server, number: int, tokens: int = 24) -> str:
    messages: Any = [{"role": "user", "content": f"hello world number {number}, the cat sat on a mat"}]
    made = server.client().chat.completions.create(**ASK, max_tokens=tokens, messages=messages)
    return made.choices[0].message.content or ""


@pytest.mark.slow
def test_groups_answer_as_one_process_does(nodes: Nodes, groups: Server, plain: Server) -> None:
    assert len(nodes.workers(REPLICA)) == 2
    assert len(nodes.workers(FOLLOWER)) == 2
    assert [answer(groups, n) for n in range(6)] == [answer(plain, n) for n in range(6)]


@pytest.mark.slow
def test_a_lost_group_loses_no_request_that_had_not_begun_to_answer(
    nodes: Nodes, groups: Server, plain: Server
) -> None:
    wanted = [answer(plain, n, 300) for n in range(6)]
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(answer, groups, n, 300) for n in range(6)]
        time.sleep(1.0)
        assert not any(one.done() for one in asked)  # all of them are under way, in both groups
        nodes.workers(FOLLOWER)[0].send_signal(signal.SIGKILL)
        assert [one.result() for one in asked] == wanted
    went = [line["replica"] for line in groups.log() if line.get("status") == 200 and "replica" in line]
    assert len({*went[-6:]}) == 1, "the group that is left answered all of them"
    until(lambda: len(nodes.workers(FOLLOWER)) == 2 and len(nodes.workers(REPLICA)) == 2)
    assert answer(groups, 0, 300) == wanted[0]


@pytest.mark.slow
def test_an_answer_that_had_begun_says_that_its_group_is_gone(nodes: Nodes, groups: Server) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    with groups.client().chat.completions.create(**ASK, max_tokens=2000, messages=messages, stream=True) as stream:
        iterator = iter(stream)
        next(iterator)
        for follower in nodes.workers(FOLLOWER):
            follower.send_signal(signal.SIGKILL)
        with pytest.raises(openai.APIError, match="the replica that computed this answer is gone"):
            for _ in iterator:
                pass


@pytest.mark.slow
def test_a_lost_machine_is_a_lost_group(nodes: Nodes, groups: Server, plain: Server) -> None:
    until(lambda: len(nodes.workers(FOLLOWER)) == 2)
    wanted = [answer(plain, n, 300) for n in range(10, 14)]
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(answer, groups, n, 300) for n in range(10, 14)]
        time.sleep(0.5)
        nodes.tell("kill")
        assert [one.result() for one in asked] == wanted
    nodes.tell("add")
    until(lambda: len(nodes.workers(FOLLOWER)) == 2)
    assert answer(groups, 10, 300) == wanted[0]


@pytest.mark.parametrize(
    ("machines", "replicas", "each"), [([8], 1, 4), ([4, 4], 2, 2), ([3, 1], 2, 1), ([2, 2], 1, 2)]
)
def test_the_processes_of_all_groups_share_the_cores_that_there_are(
    machines: list[int], replicas: int, each: int
) -> None:
    assert cores_each(machines, replicas, 2) == each


def test_more_processes_than_cores_are_refused() -> None:
    with pytest.raises(Refused, match="2 replicas want 2 processes with a core each, and the Ray cluster has 3"):
        cores_each([2, 1], 2, 2)
