"""The engine: many requests at once over one paged cache.

A step is one pass for all decoding rows together, and one chunk's worth of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.generation.lane import Lane
from vantage.generation.limits import Limits
from vantage.generation.memory import Memory
from vantage.generation.request import Event, Output, QueueFull, Request, RequestFailed
from vantage.generation.sampling import Constraint, Pick, Picker, Sampling, forked
from vantage.generation.scheduler import Scheduler
from vantage.generation.stats import Counters, Stats
from vantage.generation.stops import Stop, StopWatcher
from vantage.model import Model
from vantage.spec.parts import EncoderOutput as Source
from vantage.spec.positions import Positions


@final
class Engine:
    """Continuous batching: requests join and leave between steps.

    ``capacity``: tokens of the cache in all, in blocks of ``block`` (``None``: it grows). ``rows``: how
    many samples run at once. ``queue``: how many requests may wait. ``chunk``: prompt tokens computed
    between two tokens of the others. ``share_prefixes``: keep what was computed for requests that begin
    alike, each tenant's for itself unless ``share_tenants``; an encoder-decoder shares none. When blocks
    run out, unused prefixes go first, the least recently used before the others (a cache that grows
    keeps the last 64); then the request that ranks last is put back and computed again later.

    ``batch_invariant``: every request's tokens are bit for bit those of a run alone with the same
    ``chunk``, on the same machine with the same number of threads. The price: each
    row is a pass of its own, so B rows take about B times as long as one, and keys and values are
    copied for every pass; prefixes are shared in whole chunks of prompts only; and what a preempted
    request had generated is computed again token by token.

    ``cache=False`` computes everything anew for every token, to show what a cache is worth.

    One thread at a time: an engine has no locks.
    """

    def __init__(
        self,
        model: Model,
        *,
        capacity: int | None = None,
        block: int = 16,
        chunk: int = 256,
        rows: int = 64,
        queue: int = 1024,
        share_prefixes: bool = True,
        share_tenants: bool = False,
        batch_invariant: bool = False,
        cache: bool = True,
    ):
        for name, value in (("chunk", chunk), ("rows", rows), ("queue", queue)):
            if value < 1:
                raise BadInput(f"{name}={value}: give at least 1")
        self.model, self._limits = model, Limits.of(model)
        self._chunk, self._rows, self._queue = chunk, rows, queue
        self._invariant, self._caching = batch_invariant, cache
        self._counters = Counters()
        memory = Memory(
            model,
            capacity=capacity,
            block=block,
            gather=batch_invariant,
            cut=chunk if batch_invariant else 1,
            share=share_prefixes and cache and model.encoder is None,
        )
        self._memory = memory
        self._scheduler = Scheduler(
            memory,
            self._limits,
            self._counters,
            rows=rows,
            share_tenants=share_tenants,
            chunks_only=batch_invariant,
        )
        self._sources: dict[int, Source] = {}  # what the encoder made of the sources of requests that run
        self._events: list[Event] = []
        self._ids = 0

    # ---- what a caller does

    def submit(
        self,
        tokens: Sequence[int] | Tensor,
        *,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        stop: Stop = Stop(),
        priority: int = 0,
        tenant: str | None = None,
        source: Sequence[int] | Tensor | None = None,
        n: int = 1,
        constraint: Constraint | None = None,
    ) -> Request:
        """Put a request into the queue. Higher ``priority`` goes first, then who came first.

        ``source``: what an encoder-decoder reads. ``n``: samples, which share the prompt's keys. ``stop``
        strings need a model with a tokenizer. A ``constraint`` serves one sample; for several it must fork.
        """
        prompt, read = _numbers("tokens", tokens), None if source is None else _numbers("source", source)
        self._check(prompt, read, max_tokens, n, stop)
        constraints = [constraint, *(forked(constraint) for _ in range(n - 1))]
        vocab = self.model.spec.vocab
        seed = Picker(sampling, prompt, vocab=vocab).seed
        sampling = replace(sampling, seed=seed)
        outputs = tuple(Output(i, seed) for i in range(n))
        max_tokens = self._limits.cut(len(prompt), max_tokens)
        request = Request(self._ids, prompt, max_tokens, sampling, stop, priority, tenant, read, outputs)
        lanes = [
            Lane(
                request,
                output,
                Picker(sampling, prompt, vocab=vocab, sample=output.sample, constraint=constraints[output.sample]),
                StopWatcher(self.model.tokenizer, stop.strings) if stop.strings else None,
                list(prompt),
                chunked=len(prompt),
            )
            for output in outputs
        ]
        lanes[0].siblings = lanes[1:]
        if self._scheduler.waiting >= self._queue:
            raise QueueFull(f"{self._queue} requests are waiting already: try again later, or make the queue longer")
        self._ids += 1
        self._scheduler.add(lanes[0])
        return request

    @torch.inference_mode()
    def cancel(self, request: Request) -> None:
        """End a request now. Its last event comes with the next step; one that has finished stays as it is."""
        if request.state == "finished":
            return
        if not self._scheduler.has(request):
            raise BadInput(f"{request} is not one of this engine's: cancel it where it was submitted")
        self._end(request, "cancelled")

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One token for every row that decodes, and a chunk of prompts. Returns what happened since the last step."""
        self._counters.steps += 1
        with self._counters.timed("schedule"):
            self._scheduler.admit()
        self._decode()
        self._prefill()
        events, self._events = self._events, []
        return events

    def run(self) -> list[Event]:
        """Step until nothing is left to do."""
        events = list(self._events)
        self._events.clear()
        while not self.idle:
            events += self.step()
        return events

    @property
    def idle(self) -> bool:
        return self._scheduler.idle and not self._events

    @property
    def stats(self) -> Stats:
        """What has been done and what is held, now."""
        memory = self._memory
        cross = sum(layer.bytes for cache in self._scheduler.caches() for layer in cache.cross)
        return Stats(
            **asdict(self._counters),
            projections=memory.projections,
            bytes_held=memory.bytes_held + cross,
            blocks_used=memory.blocks_used,
            blocks_free=memory.blocks_free,
            prefixes=len(memory.prefixes),
        )

    def forget(self) -> None:
        """Let go of all prefixes that are kept for requests to come."""
        self._memory.prefixes.clear()

    # ---- a step

    def _decode(self) -> None:
        """One token more for every lane whose prompt is computed."""
        for lane in self._scheduler.ready("decode"):
            if lane.length is not None and len(lane.tokens) > lane.length:
                self._scheduler.restart(lane)
                self._scheduler.lengthen(lane)
                lane.cache = self._memory.new(lane.length)
            elif lane.fed == len(lane.tokens):  # the last step was interrupted before a token was chosen
                self._scheduler.own(lane)
                lane.held().crop(lane.fed - 1)
                lane.fed -= 1
        lanes = self._scheduler.ready("decode")
        if self._invariant:
            groups = [[lane] for lane in lanes]
        else:
            lanes.sort(key=lambda lane: lane.length or 0)  # stable: by rank within a length
            groups = [list(group) for _, group in groupby(lanes, lambda lane: lane.length)]
        for group in groups:
            group = [lane for lane in group if lane.stage == "decode"]  # one before may have taken its blocks
            if group:
                self._run_batch(group)

    def _run_batch(self, lanes: list[Lane]) -> None:
        try:
            with self._counters.timed("schedule"):
                lanes, cache = self._scheduler.batch(lanes)
            if cache is None:
                return
            with self._counters.timed("decode"):
                tokens = self._tensor([[lane.tokens[-1]] for lane in lanes])
                logits = _wide(self.model(tokens, positions=_onward(lanes), cache=cache)[:, -1])
        except Exception as e:
            return self._fail(lanes, e)
        self._counters.calls += 1
        for lane in lanes:
            lane.fed += 1
            lane.reached = max(lane.reached, lane.fed)
        for lane, row in zip(lanes, logits, strict=True):
            self._choose(lane, row)

    def _prefill(self) -> None:
        """Prompts by rank, until a chunk's worth of tokens is done."""
        left = self._chunk
        for lane in self._scheduler.ready("prefill"):
            while left > 0 and lane.stage == "prefill":  # one before may have taken its blocks
                end = self._chunk_end(lane)
                with self._counters.timed("schedule"):
                    fits = self._scheduler.room(lane.held(), end - lane.fed, lane)
                if not fits:
                    break
                left -= end - lane.fed
                self._run_chunk(lane, end)
                if not self._caching:
                    break  # it begins anew for every token: one a step, as with a cache

    def _chunk_end(self, lane: Lane) -> int:
        """Chunks end at multiples of their size, whatever else runs, and where the masks allow a cut."""
        if not self._caching:
            return len(lane.tokens)
        if self._invariant and lane.fed >= lane.chunked:
            return lane.fed + 1  # generated tokens go the way they went the first time
        total = lane.chunked if self._invariant else len(lane.tokens)
        end = min(total, lane.fed - lane.fed % self._chunk + self._chunk)
        while end < total and not self._memory.settled(end):
            end += 1
        return end

    def _run_chunk(self, lane: Lane, end: int) -> None:
        start, last = lane.fed, end == len(lane.tokens)
        try:
            with self._counters.timed("prefill"):
                tokens = self._tensor([lane.tokens[start:end]])
                positions = Positions.arange(1, end - start, start)
                logits = self._last_logits(tokens, positions, lane, last)
        except Exception as e:
            return self._fail([lane], e)
        again = max(0, min(end, lane.reached) - start)
        lane.request.recomputed += again
        self._counters.recomputed += again
        self._counters.prefilled += max(0, min(end, len(lane.request.tokens)) - max(start, lane.reached))
        self._counters.calls += 1
        lane.fed, lane.reached = end, max(lane.reached, end)
        if logits is None:
            return
        lane.stage = "decode"
        try:
            with self._counters.timed("schedule"):
                if end <= len(lane.request.tokens) or not self._invariant:
                    self._scheduler.keep(lane)
                lanes = self._scheduler.fork(lane)
        except Exception as e:
            return self._fail([lane], e)
        for one in lanes:
            self._choose(one, logits)

    def _last_logits(self, tokens: Tensor, positions: Positions, lane: Lane, wanted: bool) -> Tensor | None:
        """Run a chunk. Only its last token goes through the head, if it is the prompt's last."""
        row, source = lane.held(), self._source(lane)
        if tokens.shape[1] == 1 and wanted:  # as a decoding row goes: a token computed again gives the same bits
            return _wide(self.model(tokens, positions=positions, cache=row, source=source)[0, -1])
        hidden = self.model.hidden(tokens, positions=positions, cache=row, source=source)
        return _wide(self.model.head(hidden[:, -1:])[0, -1]) if wanted else None

    def _choose(self, lane: Lane, logits_V: Tensor) -> None:
        """Take a token. What goes wrong here is the request's own."""
        try:
            with self._counters.timed("pick"):
                pick = lane.picker.pick(logits_V)
                lane.picker.took(pick.token)
                finish = self._finish(lane, pick)
        except Exception as e:
            return self._fail([lane], e)
        lane.tokens.append(pick.token)
        lane.output.picks.append(pick)
        lane.output.finish = finish
        self._counters.generated += 1
        self._events.append(Event(lane.request, lane.output.sample, pick, finish))
        if finish is not None:
            self._scheduler.finish(lane, keep=not self._invariant)
            self._forget_source(lane.request)
        elif not self._caching:
            self._scheduler.restart(lane)
            lane.cache = self._memory.new(lane.length)

    def _finish(self, lane: Lane, pick: Pick) -> str | None:
        if lane.watcher is not None:
            lane.watcher.push(pick.token)
        constraint = lane.picker.constraint
        stopped = lane.watcher is not None and lane.watcher.stopped is not None
        if stopped or pick.token in lane.request.stop.tokens or (constraint is not None and constraint.done()):
            return "stop"
        return "length" if len(lane.output.picks) + 1 >= lane.request.max_tokens else None

    # ---- ends

    def _fail(self, lanes: list[Lane], error: Exception) -> None:
        """A fault ends the requests of its pass. Their rows were rolled back by the cache, and are freed."""
        for request in dict.fromkeys(lane.request for lane in lanes):
            if request.state != "finished":
                request.error = RequestFailed(f"request {request.id} failed: {error}")
                request.error.__cause__ = error
                self._end(request, "error")

    def _end(self, request: Request, finish: str) -> None:
        self._scheduler.drop(request)
        self._sources.pop(request.id, None)
        for output in request.outputs:
            if output.finish is None:
                output.finish = finish
                self._events.append(Event(request, output.sample, None, finish))

    # ---- inside

    def _tensor(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, device=self.model.embed.tokens.weight.device)

    def _source(self, lane: Lane) -> Source | None:
        """What the encoder makes of the source, once for all samples; nothing once the row holds it."""
        request = lane.request
        if request.source is None or lane.held().has_memory:
            return None
        if request.id not in self._sources:
            self._sources[request.id] = self.model.encode(self._tensor([list(request.source)]))
        return self._sources[request.id]

    def _forget_source(self, request: Request) -> None:
        if request.state == "finished":
            self._sources.pop(request.id, None)

    def _check(
        self, prompt: tuple[int, ...], source: tuple[int, ...] | None, max_tokens: int, n: int, stop: Stop
    ) -> None:
        if not prompt:
            raise BadInput("an empty prompt: give at least one token (a beginning-of-text token, if there is nothing)")
        if max_tokens < 1:
            raise BadInput(f"max_tokens={max_tokens}: give at least 1")
        if not 1 <= n <= self._rows:
            raise BadInput(f"n={n}: give from 1 to {self._rows}, the rows of this engine")
        if stop.strings and self.model.tokenizer is None:
            raise BadInput("stop strings need a tokenizer, and this model has none: give stop tokens")
        if (source is None) != (self.model.encoder is None):
            kind = "has no encoder: leave source out" if source is not None else "reads a source: pass source="
            raise BadInput(f"this model {kind}")
        if source is not None:
            self.model.encoder.embed.check(torch.tensor([source]))  # pyright: ignore[reportOptionalMemberAccess] (checked above)
        total = len(prompt) + self._limits.cut(len(prompt), max_tokens) - 1
        if not self._memory.fits(total):
            raise BadInput(
                f"a prompt of {len(prompt)} tokens and max_tokens={max_tokens} need {total} tokens of cache, more than "
                "this engine has in all: make it with a larger capacity, or ask for less"
            )


def _onward(lanes: list[Lane]) -> Positions:
    """Where each goes on, from the host's own numbers: every fact about them is known on any device."""
    fed = [lane.fed for lane in lanes]
    if len(set(fed)) == 1:
        return Positions.arange(len(fed), 1, fed[0])
    return Positions.onward(torch.tensor(fed), 1)


def _wide(logits: Tensor) -> Tensor:
    """Probabilities are worked out in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _numbers(name: str, tokens: Sequence[int] | Tensor) -> tuple[int, ...]:
    listed = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
    for token in listed:
        if not isinstance(token, int) or isinstance(token, bool):
            raise BadInput(f"{name} hold {token!r}: give one sequence of whole numbers")
    return tuple(listed)
