"""Imported by Ray Serve, in the process that asks: a request goes to the replica that the gateway has chosen for it.

Ray sends this class around by value, with copies of whatever it names: what is to be shared is imported when it runs.
"""

from __future__ import annotations

from typing import Any

from vantage.cluster import ray_part

Base: Any = ray_part("ray.serve.request_router").RequestRouter


class ChosenReplicaRouter(Base):
    """Ray's own rules are for requests that name no replica, or one that has just gone."""

    def initialize_state(self) -> None:
        from vantage.serve.on_ray import KNOWN_REPLICAS

        KNOWN_REPLICAS.router = self

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        from vantage.serve.on_ray import name_of

        wanted = None if pending_request is None else pending_request.kwargs.get("to")
        chosen = [one for one in candidate_replicas if name_of(one.replica_id) == wanted]
        return [chosen or candidate_replicas]
