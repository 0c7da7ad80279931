"""A verb that runs in several processes, started by torchrun: all do the same, and the first one speaks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class SameInAll:
    """The processes that do the same."""

    first: bool

    def seed(self) -> int:
        """One that all of them have."""
        import secrets

        import torch
        import torch.distributed as dist

        drawn = torch.tensor(secrets.randbelow(2**31))
        dist.broadcast(drawn, 0)
        return int(drawn)


@contextlib.contextmanager
def same_in_all() -> Iterator[SameInAll]:
    """Join the others; what this process prints is lost unless it is the first. One that dies ends all of them."""
    from vantage.parallel.group import ending_together, join_group, leave_group

    join_group("cpu")
    first = os.environ.get("RANK") == "0"
    with contextlib.ExitStack() as stack:
        if not first:
            silence = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(silence))
        with ending_together():
            yield SameInAll(first)
            sys.stdout.flush()
            leave_group()
