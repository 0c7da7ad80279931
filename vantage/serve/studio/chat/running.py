"""Answers on their way, whoever reads them: a page that is loaded again finds its answer and follows it on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import final

from vantage.serve.errors import ApiError
from vantage.serve.studio.chat.answer import Event
from vantage.serve.studio.state import Studio

UNREAD_TIMEOUT_S = 30.0  # an answer that nobody reads goes on for so long: a page may be on its way back


@final
class RunningAnswer:
    """One answer: its events so far, and those who follow them. All methods are for the event loop."""

    def __init__(self, events: AsyncGenerator[Event], stopping: threading.Event, ended: Callable[[], None]):
        self._events: list[Event] = []
        self._stopping, self._ended = stopping, ended
        self._error: Exception | None = None
        self._finished = False
        self._changed = asyncio.Event()
        self._readers = 0
        self._task = asyncio.ensure_future(self._run(events))

    def stop(self) -> None:
        """End it after its present token; its last events still come."""
        self._stopping.set()

    def cancel(self) -> None:
        """End it without waiting for more."""
        self._stopping.set()
        self._task.cancel()

    async def follow(self) -> AsyncGenerator[Event]:
        """All events, from the first. When the last reader leaves, the answer goes on for a while without one."""
        self._readers += 1
        try:
            at = 0
            while True:
                while at < len(self._events):
                    yield self._events[at]
                    at += 1
                if self._finished:
                    break
                await self._changed.wait()
            if self._error is not None:
                raise self._error
        finally:
            self._readers -= 1
            if not self._readers and not self._finished:
                self._left()

    def _left(self) -> None:
        if self._events:
            asyncio.get_running_loop().call_later(UNREAD_TIMEOUT_S, lambda: None if self._readers else self.stop())
        else:
            self.cancel()  # it still waits in the queue, and nobody knows of it

    async def _run(self, events: AsyncGenerator[Event]) -> None:
        try:
            async for event in events:
                self._events.append(event)
                self._wake()
        except Exception as e:
            self._error = e
        finally:
            self._finished = True
            self._wake()
            self._ended()
            await events.aclose()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@final
class RunningAnswers:
    """Those of all conversations, by their ids. For the event loop."""

    def __init__(self, studio: Studio):
        self._studio = studio
        self._running: dict[str, RunningAnswer] = {}
        studio.closing.append(self._close)

    def __contains__(self, conversation: str) -> bool:
        return conversation in self._running

    def get(self, conversation: str) -> RunningAnswer | None:
        return self._running.get(conversation)

    def start(
        self, conversation: str, make: Callable[[], Iterator[Event]], stopping: threading.Event, thread: str
    ) -> RunningAnswer:
        if conversation in self._running:
            raise moved("an answer is being written in this conversation, in another tab or for another reader")
        events = self._studio.thread(thread).run(make)
        answer = RunningAnswer(events, stopping, lambda: self._forget(conversation))
        self._running[conversation] = answer
        return answer

    def _forget(self, conversation: str) -> None:
        self._running.pop(conversation, None)

    def stop_all(self) -> None:
        for answer in self._running.values():
            answer.stop()

    def _close(self) -> None:
        for answer in list(self._running.values()):
            answer.cancel()


def moved(why: str) -> ApiError:
    """A conversation is not what the page shows."""
    return ApiError(409, "conversation_moved", f"{why}: load it again, or say this as a branch", param="turn")
