"""One engine in several processes, each of which has a share of the model.

Every process has an engine of its own, and all of them do the same: whatever comes to the first one (a request, its
cancellation, a step) it tells the others, in that order. Who runs, who waits and which block is whose follows from that
alone, so none of it is sent. Tokens are chosen by the first process, from its logits, and told to the others with
whether they end their answers: sampling, grammars, penalties, stop strings and texts are its business alone.

A pass that fails in one process leaves the others in the middle of theirs. So it costs the whole group: ``Engine.step``
raises what went wrong, in every process, and whoever runs the group ends it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
from torch import Tensor

from vantage.errors import ContextWarning, Refused
from vantage.generation.choices import NO_PICK, NextToken, choose_each
from vantage.generation.request import Request
from vantage.generation.running_samples import RunningSample
from vantage.generation.sampling import Pick, Sampling
from vantage.parallel.control import ControlChannel
from vantage.spec.images import PreparedImage

if TYPE_CHECKING:
    from vantage.generation.engine import Engine

FINISHES = (None, "stop", "length")  # as they are told, by number; one more: it failed


# ---- what is told


@final
@dataclass(frozen=True)
class Submitted:
    """Of a request, what decides when it runs and which blocks it takes."""

    id: int
    arguments: dict[str, Any]  # of ``Engine.submit``

    @staticmethod
    def of(request: Request, images: Sequence[PreparedImage]) -> Submitted:
        arguments = {
            "tokens": request.tokens,
            "max_tokens": request.max_tokens,
            "priority": request.priority,
            "tenant": request.tenant,
            "source": request.source,
            "n": request.n,
            "prompt_logprobs": None if request.prompt_logprobs is None else 0,
            "images": tuple(images),
        }
        return Submitted(request.id, arguments)


@final
@dataclass(frozen=True)
class Cancelled:
    id: int


@final
@dataclass(frozen=True)
class Forgotten:
    """The prefixes are let go."""


@final
@dataclass(frozen=True)
class StepBegun:
    pass


@final
@dataclass(frozen=True)
class Closed:
    """Nothing comes any more."""


Message = Submitted | Cancelled | Forgotten | StepBegun | Closed


# ---- who tells it, and who does it


class Peers(Protocol):
    """The processes that run one engine together, as one of them sees it."""

    alone: bool  # whether this process runs its passes by itself: a failed one then costs its own requests only

    def tell(self, message: Message, *, now: bool = False) -> None:
        """This has happened. ``now``: the others are waiting for it, and for what was told before."""
        ...

    def choose(self, samples: Sequence[RunningSample], logits_BV: Tensor) -> Iterator[NextToken]:
        """What each sample goes on with, in their order."""
        ...


@final
class NoPeers:
    """One process has all of the model."""

    alone = True

    def tell(self, message: Message, *, now: bool = False) -> None:
        """There is nobody."""

    def choose(self, samples: Sequence[RunningSample], logits_BV: Tensor) -> Iterator[NextToken]:
        return choose_each(samples, logits_BV)


@final
class FirstProcess:
    """The one that requests come to. Its engine must have the same options as those of the others."""

    alone = False

    def __init__(self, channel: ControlChannel):
        if not channel.first:
            raise Refused(f"process {channel.rank} is not the first of its group: it follows (follow_engine)")
        self._channel = channel
        self._untold: list[Message] = []

    def tell(self, message: Message, *, now: bool = False) -> None:
        self._untold.append(message)
        if now:
            untold, self._untold = self._untold, []
            self._channel.tell(untold)

    def choose(self, samples: Sequence[RunningSample], logits_BV: Tensor) -> Iterator[NextToken]:
        choices = list(choose_each(samples, logits_BV))
        numbers = [(c.pick.token, len(FINISHES) if c.error is not None else FINISHES.index(c.finish)) for c in choices]
        self._channel.numbers(torch.tensor(numbers))
        return iter(choices)


@final
class FollowingProcess:
    """One that does as it is told."""

    alone = False

    def __init__(self, channel: ControlChannel):
        self._channel = channel

    def tell(self, message: Message, *, now: bool = False) -> None:
        """It was told itself."""

    def choose(self, samples: Sequence[RunningSample], logits_BV: Tensor) -> Iterator[NextToken]:
        for token, finish in self._channel.numbers(torch.empty(len(samples), 2, dtype=torch.int64)).tolist():
            if finish == len(FINISHES):
                yield NextToken(NO_PICK, error=Refused("the first process chose no token"))
            else:
                yield NextToken(Pick(token, float("nan")), finish=FINISHES[finish])


def follow_engine(engine: Engine, channel: ControlChannel) -> None:
    """In every process but the first: do what that one does, until it closes its engine."""
    running: dict[int, Request] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextWarning)  # the first process says it
        while True:
            for message in channel.hear():
                match message:
                    case Submitted(id, arguments):
                        running[id] = engine.submit(sampling=Sampling(seed=0), **arguments)
                        assert running[id].id == id, f"request {id} of the first process is {running[id].id} here"
                    case Cancelled(id):
                        engine.cancel(running.pop(id))
                    case Forgotten():
                        engine.forget()
                    case StepBegun():
                        engine.step()
                        running = {id: request for id, request in running.items() if request.state != "finished"}
                    case Closed():
                        return
