"""What a compiler takes as it is when it traces: facts about the machine, which need a file system or a driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def constant_when_compiled(function: F) -> F:
    """What ``torch.compiler.assume_constant_result`` sets. That brings torch's whole compiler along, which would take a
    third of the time that ``import vantage`` takes, for everybody.

    For a function alone, and not for a cached one: the compiler looks behind ``functools.cache``."""
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010
    return function
