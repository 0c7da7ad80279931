"""Joining the processes that torchrun has started, and ending together: one that dies takes the others with it.

Every process says every second that it is alive, in the store by which the processes found each other. A process that
fails writes its reason there. The others then end within seconds and say it, whatever they were waiting for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from vantage.errors import VantageError

HEARTBEAT_S = 1.0  # between two signs of life
HEARTBEAT_TIMEOUT_S = 15.0  # without one, a process counts as dead
GRACE_S = 5.0  # for a process to end by itself, and say more, once another has failed


class PeerEnded(VantageError):
    """Another process of the group has ended, so this one cannot go on."""


def join_group(device: str) -> None:
    """Join them, once. ``device``: "cuda" has a backend of its own."""
    if dist.is_initialized():
        return
    torch_dist = cast(Any, dist)  # which does not say that it exports its stores
    store, rank, size = next(rendezvous("env://"))
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=torch_dist.PrefixStore("group", store), rank=rank, world_size=size)
    _watches.append(DeathWatch(torch_dist.PrefixStore("deaths", cast(Any, store).clone()), rank, size))
    atexit.register(_end_watch, None)  # one that comes to its end is not dead


def leave_group() -> None:
    """Leave together: one that goes while another still sends can be aborted by its own threads."""
    if dist.is_initialized():
        dist.barrier()
        _end_watch(None)
        dist.destroy_process_group()


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Whatever ends this block early in one process ends it in all of them, with that process's reason."""
    try:
        yield
    except BaseException as e:
        other = None
        if _watches and isinstance(e, RuntimeError) and not isinstance(e, VantageError):
            # who waited for one that died gets an error of the wire: the reason is the other's
            other = _watches[0].reason_of_another(HEARTBEAT_TIMEOUT_S + HEARTBEAT_S)
        if other is not None:
            _end_watch(f"ended because {other}")
            raise PeerEnded(other) from e
        _end_watch(f"{type(e).__name__}: {e}" if str(e) else type(e).__name__)
        raise


def when_another_ends(listener: Callable[[str], None]) -> None:
    """Before this process ends because another has: the reason is told, in another thread, and ``GRACE_S`` are left."""
    _listeners.append(listener)


def _end_watch(reason: str | None) -> None:
    if _watches:
        _watches.pop().end(reason)


class DeathWatch:
    """A thread that says that this process is alive, and looks whether the others are."""

    def __init__(self, store: Any, rank: int, size: int):
        self.rank, self.size = rank, size
        self._store, self._over = store, threading.Event()
        self._store.set_timeout(timedelta(seconds=HEARTBEAT_S * 3))
        self._heard = dict.fromkeys((r for r in range(size) if r != rank), (b"", time.monotonic()))
        self._store.set(f"alive {rank}", "0")
        threading.Thread(target=self._run, daemon=True, name="death-watch").start()

    def end(self, reason: str | None) -> None:
        """This process ends; ``None``: as it should."""
        self._over.set()
        with contextlib.suppress(RuntimeError):  # who holds the store may have gone
            self._store.set(f"end {self.rank}", "" if reason is None else " ".join(reason.split())[:500])

    def reason_of_another(self, patience: float) -> str | None:
        """Why another process has ended, or will not be heard of again; waits so many seconds to learn it."""
        until = time.monotonic() + patience
        while True:
            try:
                reason = self._look()
            except RuntimeError:
                reason = "the process that holds the store of the group has ended"
            if reason is not None or time.monotonic() > until:
                return reason
            time.sleep(HEARTBEAT_S / 4)

    def _look(self) -> str | None:
        for rank in list(self._heard):
            who = f"process {rank} of {self.size}"
            if self._store.check([f"end {rank}"]):
                if reason := self._store.get(f"end {rank}").decode():
                    return f"{who} ended: {reason}"
                self._heard.pop(rank, None)  # it had nothing left to do
                continue
            beat = self._store.get(f"alive {rank}") if self._store.check([f"alive {rank}"]) else b""
            before, since = self._heard[rank]
            if beat != before:
                self._heard[rank] = beat, time.monotonic()
            elif time.monotonic() - since > HEARTBEAT_TIMEOUT_S:
                return f"{who} ended without a word: it was killed, or its machine is gone"
        return None

    def _run(self) -> None:
        beat = 0
        while not self._over.wait(HEARTBEAT_S):
            beat += 1
            try:
                self._store.set(f"alive {self.rank}", str(beat))
                reason = self._look()
            except RuntimeError:
                reason = "the process that holds the store of the group has ended"
            if reason is None:
                continue
            for listener in _listeners:
                listener(reason)
            if not self._over.wait(GRACE_S):
                sys.stderr.write(f"vantage: {reason}\n")
                sys.stderr.flush()
                os._exit(1)


_watches: list[DeathWatch] = []  # of the group that was joined
_listeners: list[Callable[[str], None]] = []
