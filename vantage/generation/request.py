"""Requests to the engine, and the events that come of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from vantage.errors import VantageError
from vantage.generation.images import PromptImages
from vantage.generation.prefix import Match
from vantage.generation.sampling import Pick, Sampling
from vantage.generation.stops import Stop


class QueueFull(VantageError):
    """The engine's queue holds as many requests as it may. Nothing was taken: try again later."""


class RequestFailed(VantageError):
    """A request whose step failed. Its cause is attached; other requests go on."""


@final
@dataclass(eq=False)
class Output:
    """One sample of a request, as far as it has come."""

    sample: int
    seed: int
    text: str | None = None  # as far as it is certain; None: the model has no tokenizer
    picks: list[Pick] = field(default_factory=list)
    finish: str | None = None  # "stop", "length", "cancelled" or "error"
    beyond_context: int = 0  # tokens that came from past the context the model was made for

    @property
    def tokens(self) -> list[int]:
        return [pick.token for pick in self.picks]


@final
@dataclass(eq=False)
class Request:
    """A prompt and how to go on from it. Made by ``Engine.submit``; read it, do not write it."""

    id: int
    tokens: tuple[int, ...]
    max_tokens: int  # as it was given: the model's positions may end sooner
    sampling: Sampling
    stop: Stop
    priority: int
    tenant: str | None
    source: tuple[int, ...] | None
    outputs: tuple[Output, ...]
    prompt_logprobs: int | None = None  # None: the prompt is not scored; n: its tokens, and the n best in their place
    adapter: str | None = None
    images: PromptImages | None = None
    prompt_picks: list[Pick | None] = field(default_factory=list)  # the scores, as far as they have come
    prefix: Match | None = None  # what was found in the prefix tree, and why not more; None: not begun
    error: RequestFailed | None = None
    preemptions: int = 0
    recomputed: int = 0

    def __post_init__(self) -> None:
        if self.prompt_logprobs is not None:
            self.prompt_picks.append(None)  # nothing comes before the first token

    @property
    def n(self) -> int:
        return len(self.outputs)

    @property
    def state(self) -> str:
        """ "waiting", "running" or "finished"."""
        if all(output.finish is not None for output in self.outputs):
            return "finished"
        return "waiting" if self.prefix is None else "running"

    def __repr__(self) -> str:
        written = sum(len(output.picks) for output in self.outputs)
        return f"<Request {self.id}: {self.state}, {len(self.tokens)} tokens in, {written} out>"


@final
@dataclass(frozen=True)
class Event:
    """A token of a sample, or its end without one (cancelled, failed)."""

    request: Request
    sample: int
    pick: Pick | None
    finish: str | None = None
    text: str = ""  # that became certain with this token
    ended_by: str | None = None  # as ``AnswerText`` has it, where it ended with this token
