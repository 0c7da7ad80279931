"""Every error a user can cause. Each message says what it got, what it wanted and what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable


class VantageError(Exception):
    """The root: catch this to catch everything that Vantage refuses."""


class BadInput(VantageError, ValueError):
    """An argument that cannot be right."""


class Refused(VantageError, ValueError):
    """Parts that do not work together. The message is the reason."""


class KernelRefused(Refused):
    """A kernel that was asked for by name and cannot do this: its name, and why."""

    def __init__(self, kernel: str, why: str):
        super().__init__(f"the kernel {kernel!r} was requested, but {why}; use kernel='auto'")
        self.kernel, self.why = kernel, why


class CacheError(VantageError):
    """A cache that is full, belongs to another model, or cannot go back that far. The cache is as it was."""


class LengthExceeded(CacheError):
    """A position past the length that was declared for a rule that depends on it."""


class PartError(VantageError, RuntimeError):
    """A part from outside the package that raised, or returned what it must not. Its cause is the original error."""


class CheckpointError(VantageError, ValueError):
    """A checkpoint that cannot be what it says it is. Nothing of it was loaded, and none of it was run."""


class ContextWarning(UserWarning):
    """A text is longer than the context that a model was made for, or ended at the model's last position."""


# whose frames stand between a user and a warning of ours
INSIDE = ("vantage", "torch", "contextlib")


def warn(message: str, category: type[Warning]) -> None:
    """A warning at the line that called Vantage, however deep in it this is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


MIN_SIMILARITY = 0.6  # how like a known name a mistyped one is before it is suggested (difflib's ratio)
MAX_SHOWN = 64  # letters of a wrong name that a message shows


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name most like this one, whatever the case; None where none is."""
    import difflib  # only a wrong name needs it

    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(str(name)[:MAX_SHOWN].lower(), names, 1, MIN_SIMILARITY)
    return names[near[0]] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`` Did you mean 'rope'?``, to be put behind a sentence; empty where no known name is like it."""
    near = nearest(name, known)
    return "" if near is None else f" Did you mean {near!r}?"


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that nothing of this kind has: the nearest known name, and all of them."""
    known = list(known)
    shown = repr(name) if len(repr(name)) <= MAX_SHOWN else repr(name)[: MAX_SHOWN - 3] + "..."
    return f"no {kind} is called {shown}.{did_you_mean(name, known)} There are: {', '.join(known) or 'none'}"
