"""``vantage serve --on ray``: replicas of the application on the machines of a Ray cluster, behind one gateway.

Ray Serve starts the replicas, looks after their health and starts them again. Its own HTTP server is left out: ours
listens in this process, with our limits, so that nothing of Ray's is open to clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, final

from fastapi import FastAPI
from starlette.types import Message

from vantage.cluster import HERE, address_of, joined, ray_part
from vantage.errors import BadInput, Refused
from vantage.serve.gateway import create_gateway, replica_answer
from vantage.serve.model_group import check_divides
from vantage.serve.ray_group import bundles
from vantage.serve.run import run_app
from vantage.serve.settings import ServerSettings

NAME, DEPLOYMENT = "vantage", "replica"
HEALTH_S = 2.0  # between two looks of Ray at a replica
SLOW_S = 120.0  # a replica that has not answered by then is given up; that one has died is noticed at once
START_TIMEOUT_S = 600.0  # models may be preloaded


def serve_on_ray(settings: ServerSettings, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Ray is joined where it runs on this machine, or started."""
    if address_of(settings.on) is not None:
        raise BadInput(
            f"--on {settings.on}: the server itself must be on a machine of the cluster. Run it there, with --on {HERE}"
        )
    if settings.tensor_parallel > 1:
        check_divides(settings)
    with joined(settings.on) as ray:
        machines = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        cores = cores_each(machines, settings.replicas, settings.tensor_parallel)
        with _deployed(settings, cores) as handle:
            replicas = RayReplicas(handle)
            app = create_gateway(settings, replicas)
            _on_start(app, replicas)
            run_app(app, settings, ready=ready)


def cores_each(machines: Iterable[float], replicas: int, processes: int = 1) -> int:
    """The most cores that each process of every replica can have."""
    available = [int(cores) for cores in machines]
    for each in range(max(available, default=0), 0, -1):
        if sum(cores // each for cores in available) >= replicas * processes:
            return each
    want = "a core each" if processes == 1 else f"{processes} processes with a core each"
    raise Refused(f"{replicas} replicas want {want}, and the Ray cluster has {sum(available)}: ask for fewer")


def _gpus(settings: ServerSettings) -> int:
    """Of a replica: one, where the cluster has any and models may run on it."""
    wanted = settings.batching.device
    has_any = ray_part("ray").cluster_resources().get("GPU", 0) > 0
    if wanted.startswith("cuda") and not has_any:
        raise Refused(f"--device {wanted}: this Ray cluster has no GPU; leave it out, or use cpu")
    return int(has_any and wanted != "cpu" and settings.tensor_parallel == 1)


@contextlib.contextmanager
def _deployed(settings: ServerSettings, cores: int) -> Iterator[Any]:
    """A handle to the replicas, all of them up."""
    from vantage.serve.replica import Replica

    serve = ray_part("ray.serve")
    for name in ("ray.serve", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR", "enable_access_log": False})
    before = serve.status().applications
    if NAME in before:
        raise Refused("this Ray cluster serves Vantage already: stop that server first")
    deployment = serve.deployment(
        Replica,
        name=DEPLOYMENT,
        num_replicas=settings.replicas,
        ray_actor_options={"num_cpus": cores, "num_gpus": _gpus(settings)},
        max_ongoing_requests=settings.limits.connections + 64,  # its own queue refuses, long before
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=SLOW_S,
        graceful_shutdown_timeout_s=settings.limits.drain_s,
        graceful_shutdown_wait_loop_s=0.1,
        request_router_config={"request_router_class": "vantage.serve.ray_router.ChosenReplicaRouter"},
        **bundles(settings, cores),
    )
    try:
        handle = serve.run(deployment.bind(settings, cores), name=NAME, route_prefix=None)
        yield handle.options(method_name="ask", stream=True)
    finally:
        if before:
            serve.delete(NAME)
        else:
            serve.shutdown()


@final
class _KnownReplicas:
    """What this process knows of the replicas: Ray Serve makes the router, and tells it which are up."""

    def __init__(self) -> None:
        self.router: Any = None

    def names(self) -> list[str]:
        return [] if self.router is None else sorted(name_of(one) for one in list(self.router.curr_replicas))


KNOWN_REPLICAS = _KnownReplicas()


def name_of(replica: Any) -> str:
    return str(replica.unique_id)


@final
class RayReplicas:
    def __init__(self, handle: Any):
        errors, serving = ray_part("ray.exceptions"), ray_part("ray.serve.exceptions")
        self._handle = handle
        self._gone = (errors.RayActorError, errors.ObjectLostError, serving.DeploymentUnavailableError)

    def names(self) -> Sequence[str]:
        return KNOWN_REPLICAS.names()

    async def ask(self, name: str, scope: dict[str, Any], body: bytes) -> AsyncGenerator[list[Message]]:
        answer = self._handle.remote(scope, body, to=name)
        try:
            async with contextlib.aclosing(replica_answer(answer, self._gone)) as stream:
                async for messages in stream:
                    yield messages
        finally:
            answer.cancel()  # of one that is over, it does nothing

    async def begin(self) -> None:
        """Ray learns of the replicas with the first request."""
        scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b""}
        async with contextlib.aclosing(self.ask("", {**scope, "headers": [(b"host", b"localhost")]}, b"")) as answer:
            async for _ in answer:
                pass


def _on_start(app: FastAPI, replicas: RayReplicas) -> None:
    """Requests are taken once a replica has answered."""
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with asyncio.timeout(START_TIMEOUT_S):
            await replicas.begin()
        async with inner(app) as state:
            yield state

    app.router.lifespan_context = lifespan
