"""Callbacks: what a caller wants done while a run goes on, and a way to end it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from vantage.errors import BadInput, did_you_mean

# What a callback may have, and what each is called with.
EVENTS = {
    "on_begin": "the run, with its model, settings, folder and stop()",
    "on_step": "a StepRecord, after every step",
    "on_eval": "a list of ScoreRecord, after every evaluation",
    "on_save": "the folder of a checkpoint",
    "on_end": "what vt.train returns",
    "on_error": "the exception that ends the run",
}


class Callbacks:
    """The callbacks of a run. Each is an object with some of the methods of ``EVENTS``, or a function, which is called
    as ``on_step``. One that returns True ends the training after this step."""

    def __init__(self, callbacks: Iterable[Any] = ()):
        self._methods: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {event: [] for event in EVENTS}
        for callback in listed(callbacks):
            for event, method in _methods(callback).items():
                self._methods[event].append((_name(callback), method))

    def tell(self, event: str, value: Any) -> str | None:
        """Call every callback of this event. Why the training is to end, if one of them says so."""
        stopped = [name for name, method in self._methods[event] if method(value) is True]
        return f"the callback {stopped[0]} returned True" if stopped else None


def listed(callbacks: Any) -> list[Any]:
    """Callbacks as a list: one alone needs none."""
    if isinstance(callbacks, (list, tuple)):
        return list(callbacks)
    if isinstance(callbacks, Iterable) and not callable(callbacks) and not isinstance(callbacks, (str, bytes)):
        return list(callbacks)
    return [callbacks]


def _methods(callback: Any) -> dict[str, Callable[[Any], Any]]:
    named = [name for name in dir(callback) if name.startswith("on_")]
    for name in named:
        if name not in EVENTS:
            raise BadInput(
                f"the callback {_name(callback)} has a method {name}, which nothing calls.{did_you_mean(name, EVENTS)} "
                f"There are: {', '.join(EVENTS)}"
            )
    if inspect.isclass(callback):
        raise BadInput(f"callbacks: {callback.__name__} is a class: give an object of it, {callback.__name__}()")
    if named:
        return {name: getattr(callback, name) for name in named}
    if callable(callback):
        return {"on_step": callback}
    raise BadInput(
        f"callbacks: {callback!r:.80} is no function and has none of the methods {', '.join(EVENTS)}: give one or the "
        "other, or a list of them"
    )


def _name(callback: Any) -> str:
    return getattr(callback, "__name__", type(callback).__name__)
