"""What a chosen token does to its request: tokens and text grow, an event says so, and the request may be over."""

from __future__ import annotations

from typing import final

from vantage.generation.block_memory import BlockMemory
from vantage.generation.choices import NextToken
from vantage.generation.forward_passes import ForwardPasses
from vantage.generation.limits import ContextWatch
from vantage.generation.request import Event, Request, RequestFailed
from vantage.generation.running_samples import RunningSample
from vantage.generation.scheduler import Scheduler
from vantage.generation.stats import Counters


@final
class OutputProcessor:
    """Outputs of an engine's requests, and how they end. ``events``: what has happened since they were taken last.

    ``caching``: a sample goes on from what it has computed. ``keep_answers``: as prefixes of requests to come.
    """

    def __init__(
        self,
        memory: BlockMemory,
        scheduler: Scheduler,
        passes: ForwardPasses,
        counters: Counters,
        context: ContextWatch,
        *,
        caching: bool,
        keep_answers: bool,
    ):
        self._memory, self._scheduler, self._passes = memory, scheduler, passes
        self._counters, self._context = counters, context
        self._caching, self._keep_answers = caching, keep_answers
        self.events: list[Event] = []

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def take(self, sample: RunningSample, choice: NextToken) -> None:
        """A token has come, or why there is none, which is the request's own fault."""
        if choice.error is not None:
            return self.fail(sample.request, choice.error)
        pick, text, finish = choice.pick, choice.text, choice.finish
        beyond = self._context.passes(len(sample.tokens))
        sample.tokens.append(pick.token)
        sample.output.picks.append(pick)
        sample.output.finish = finish
        if sample.output.text is not None:
            sample.output.text += text
        self._counters.generated += 1
        self._counters.beyond_context += beyond
        sample.output.beyond_context += beyond
        self.events.append(Event(sample.request, sample.output.sample, pick, finish, text, choice.ended_by))
        if finish is not None:
            if finish == "length":
                self._context.ended(len(sample.request.tokens), len(sample.output.picks), sample.request.max_tokens)
            self._complete(sample)
        elif not self._caching:
            self._scheduler.restart(sample)
            sample.cache = self._memory.new(sample.length)

    def end_scored(self, sample: RunningSample) -> None:
        """The prompt is scored, and no token was asked for."""
        sample.output.finish = "length"
        self.events.append(Event(sample.request, sample.output.sample, None, "length", "", "length"))
        self._complete(sample)

    def fail(self, request: Request, error: Exception) -> None:
        """End a request by an error, unless it is over already."""
        if request.state != "finished":
            request.error = RequestFailed(f"request {request.id} failed: {error}")
            request.error.__cause__ = error
            self.end(request, "error")

    def end(self, request: Request, finish: str) -> None:
        """End all of a request's samples that have not finished."""
        self._scheduler.drop(request)
        self._passes.forget(request)
        for output in request.outputs:
            if output.finish is None:
                output.finish = finish
                self.events.append(Event(request, output.sample, None, finish))

    def _complete(self, sample: RunningSample) -> None:
        self._scheduler.finish(sample, keep=self._keep_answers)
        if sample.request.state == "finished":
            self._passes.forget(sample.request)
