"""One server over several processes, each of which has a share of the model (tensor parallel).

The first process listens, schedules and answers. The others make the same engine over their share and follow it. When
one of them dies the group is over: a request cannot be computed by those that are left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, final

import torch

from vantage.errors import Refused
from vantage.families import load as load_model
from vantage.families import read_spec
from vantage.generation.peers import FirstProcess, FollowingProcess, Peers, follow_engine
from vantage.model import Model
from vantage.parallel.control import ControlChannel
from vantage.parallel.group import PeerEnded, when_another_ends
from vantage.parallel.tensor import divided
from vantage.serve.settings import ServedModel, ServerSettings
from vantage.serve.worker import new_engine

ENDING = (signal.SIGTERM, signal.SIGINT)


class ModelGroup(Protocol):
    """The processes that a model lies over, as the first of them sees it."""

    def peers(self) -> Peers: ...

    def lost(self, error: Exception) -> None:
        """It cannot go on. Called once, from any thread, before requests are told."""
        ...

    def watch(self, on_end: Callable[[Exception], None]) -> None:
        """Another process may end while this one waits for it: ``on_end`` is called then, in another thread."""
        ...


@final
class ServingGroup:
    """Of a server that stands alone: it ends with its group, and says why."""

    def __init__(self, channel: ControlChannel):
        self._channel = channel
        self.error: Exception | None = None

    def peers(self) -> Peers:
        return FirstProcess(self._channel)

    def lost(self, error: Exception) -> None:
        self.error = error
        os.kill(os.getpid(), signal.SIGTERM)  # as whoever wants this server to end would

    def watch(self, on_end: Callable[[Exception], None]) -> None:
        when_another_ends(lambda reason: on_end(PeerEnded(reason)))


def check_divides(settings: ServerSettings) -> None:
    """Refuse, before a process has read any weight, a model that does not lie over so many of them."""
    served = settings.models[0]
    spec = read_spec(served.source)
    if not spec.generates:
        raise Refused(f"{served.name}: over processes only models that generate are served: {spec.why_no_generation}")
    divided(spec, 0, settings.tensor_parallel, whole_experts=settings.whole_experts)


def serve_in_group(settings: ServerSettings, channel: ControlChannel, ready: Callable[[str], None]) -> None:
    """In each of the processes that torchrun has started; returns when the first one's server has ended."""
    from vantage.serve.run import serve

    check_divides(settings)
    if not channel.first:
        for (
            number
        ) in ENDING:  # who ends a group signals all of it: the first one drains, the others follow it to its end
            signal.signal(number, signal.SIG_IGN)
        return follow_server(settings, channel)
    group = ServingGroup(channel)
    serve(
        replace(settings, preload=True),
        load=lambda served: load_share(served, settings),
        ready=ready,
        group=group,
    )
    if group.error is not None:
        raise group.error


def follow_server(settings: ServerSettings, channel: ControlChannel) -> None:
    """In every process but the first."""
    model = load_share(settings.models[0], settings)
    follow_engine(new_engine(model, settings.batching, peers=FollowingProcess(channel)), channel)


def load_share(served: ServedModel, settings: ServerSettings) -> Model:
    """What this process has of a model: it reads no more of the files than that."""
    dtype = settings.batching.dtype
    kept = dtype if dtype == "auto" else getattr(torch, dtype)
    return load_model(served.source, dtype=kept, tensor_parallel=True, whole_experts=settings.whole_experts)
