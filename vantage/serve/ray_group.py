"""A replica whose model lies over several processes of a Ray cluster: this one and actors that it starts.

Ray Serve reserves the cores of all of them together (a placement group), so a group is placed whole or not at all. When
one of its processes dies, the replica ends at once, without an answer: the gateway then gives what had not begun to be
answered to another replica, and Ray Serve starts the group anew.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any, final

from vantage.cluster import ray_part
from vantage.generation.peers import FirstProcess, Peers
from vantage.parallel.control import ControlChannel
from vantage.parallel.group import PeerEnded, ending_together, join_group, leave_group, when_another_ends
from vantage.serve.model_group import follow_server
from vantage.serve.settings import ServerSettings

START_TIMEOUT_S = 300.0  # for an actor to be there: its cores are reserved already


def bundles(settings: ServerSettings, cores: int) -> dict[str, Any]:
    """What Ray Serve is told of a replica that is a group: one bundle of cores for each process."""
    if settings.tensor_parallel == 1:
        return {}
    each = {"CPU": cores}
    return {"placement_group_bundles": [each] * settings.tensor_parallel, "placement_group_strategy": "PACK"}


@final
class RayGroup:
    """The group of a replica, which is its first process."""

    def __init__(self, settings: ServerSettings, cores: int):
        ray = ray_part("ray")
        address, size = _free_address(ray), settings.tensor_parallel
        actor = ray.remote(num_cpus=cores, max_restarts=0, max_task_retries=0)(Follower)
        self._followers = [actor.remote() for _ in range(1, size)]  # they end with this process, which owns them
        ray.get([follower.started.remote() for follower in self._followers], timeout=START_TIMEOUT_S)
        self._following = [
            follower.follow.remote(settings, address, rank, size)
            for rank, follower in enumerate(self._followers, start=1)
        ]
        _join(address, 0, size)
        self._channel = ControlChannel()

    def peers(self) -> Peers:
        return FirstProcess(self._channel)

    def lost(self, error: Exception) -> None:
        os._exit(1)  # an answer would be passed on: without one, the gateway asks another replica

    def watch(self, on_end: Callable[[Exception], None]) -> None:
        when_another_ends(lambda reason: on_end(PeerEnded(reason)))


class Follower:
    """An actor: one of the other processes of a group."""

    def started(self) -> bool:
        return True

    def follow(self, settings: ServerSettings, address: tuple[str, int], rank: int, size: int) -> None:
        with ending_together():
            _join(address, rank, size)
            follow_server(settings, ControlChannel())
            leave_group()


def _join(address: tuple[str, int], rank: int, size: int) -> None:
    """The group of these processes, as torchrun would have it."""
    host, port = address
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    join_group("cpu")


def _free_address(ray: Any) -> tuple[str, int]:
    """Where the processes of a group find each other: on the machine of its first."""
    host = ray.util.get_node_ip_address()
    with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as free:
        free.bind((host, 0))
        return host, free.getsockname()[1]
