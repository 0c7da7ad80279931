"""What runs in several processes: those that torchrun has started, and a Ray cluster, for more than one machine. Ray is
an extra: it is imported when it is asked for."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from typing import Any

from vantage.errors import BadInput, Refused

HERE = "ray"
CLIENT_PORT = 10001  # where a cluster takes clients, unless its owner says otherwise
ANSWER_S = 10.0  # for a cluster to be reached in
MAX_ATTEMPTS = 3
# Ray starts a process for each client from a process that serves gRPC. Between fork and exec, gRPC's own handler may
# find its descriptors gone and abort: once in some 25 starts of a test without Ray, by how busy its threads are. With
# GRPC_ENABLE_FORK_SUPPORT=0 there is no such handler, but that is for whoever starts the head of the cluster to say.
TRANSIENT_ERROR = "Starting Ray client server failed"
WORKAROUND = "GRPC_ENABLE_FORK_SUPPORT=0"
STORE_BYTES = 200 * 2**20  # of the object store of a Ray that is started here: only small things pass through it


def processes() -> int:
    """How many torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_on_machine() -> bool:
    """Whether no other process was started here before this one: the others would draw over what it draws."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def check_tensor_parallel(count: int, verb: str) -> None:
    """Refuse to share a model out over another number of processes than there are."""
    if count not in (1, started := processes()):
        are = "is 1" if started == 1 else f"are {started}"
        raise BadInput(
            f"--tensor-parallel {count} needs {count} processes, and there {are}: start with torchrun "
            f"--nproc-per-node {count} -m vantage {verb} …"
        )


def address_of(address: str) -> str | None:
    """Of ``ray`` or ``ray://HOST:PORT``. ``None``: this machine's own."""
    if address == HERE:
        return None
    match = re.fullmatch(
        r"ray://(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?/?", address
    )
    if match is None:
        raise BadInput(f"--on {address[:80]!r}: give ray, or ray://HOST:PORT (without a port: {CLIENT_PORT})")
    port = int(match["port"] or CLIENT_PORT)
    if not 1 <= port <= 65535:
        raise BadInput(f"--on {address!r}: the port {port} is out of range, from 1 to 65535")
    return f"ray://{match['host']}:{port}"


def ray_part(name: str = "ray") -> Any:
    """Ray, or a part of it such as ``ray.serve``. It sends no statistics unless somebody says that it may."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray's next version does, without a warning
    # What Ray does on other systems, and its only switch for it: a Ray that is started here listens on loopback alone.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise Refused("--on ray needs Ray, which is not installed: pip install 'vantage[ray]'") from e


@contextlib.contextmanager
def joined(target: str, *, cores: int | None = None) -> Iterator[Any]:
    """Ray, joined where it runs or started on this machine; what was started is ended, what was joined is left.

    ``cores``: of a Ray that is started here; by default all of them.
    """
    address = address_of(target)
    ray = ray_part()
    if ray.is_initialized():
        yield ray
        return
    if not _join(ray, address):
        _start(ray, cores)
    try:
        yield ray
    finally:
        ray.shutdown()


def _join(ray: Any, address: str | None) -> bool:
    """Whether there was one to join."""
    configured = os.environ.get("RAY_ADDRESS")
    if address is None and configured == "local":  # Ray's word for one of one's own
        return False
    for left in reversed(range(MAX_ATTEMPTS)):
        try:
            if named := address or configured:
                _check_reachable(named)
            ray.init(address or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, OSError, RuntimeError, ValueError) as e:
            if address is None and not configured:
                return False
            if left and TRANSIENT_ERROR in str(e):
                sys.stderr.write(
                    f"vantage: {address or configured}: the process that Ray starts for a client was aborted by gRPC; "
                    f"trying again (start the head of the cluster with {WORKAROUND} and it will not be)\n"
                )
                continue
            why = " ".join(str(e).split())[:300]
            raise Refused(f"there is no Ray cluster at {address or configured} that can be joined: {why}") from e
        break
    return True


def _check_reachable(address: str) -> None:
    """Ray itself asks for minutes whether somebody is there."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S):
            pass


def _start(ray: Any, cores: int | None) -> None:
    """For this machine alone, without its dashboard, and with a token that only its own processes know."""
    if "RAY_AUTH_MODE" not in os.environ:  # else whoever set it knows where the token is
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray.init(
        "local",
        num_cpus=cores,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
