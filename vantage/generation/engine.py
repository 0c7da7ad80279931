"""The engine: many requests at once over one paged cache.

A step is one pass for all decoding rows together, and one chunk's worth of prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from time import perf_counter
from typing import final

import torch
from torch import Tensor

from vantage.cache import BLOCK
from vantage.errors import BadInput, unknown
from vantage.generation.block_memory import BlockMemory
from vantage.generation.choices import take_pick
from vantage.generation.chunks import PromptChunks, default_chunk
from vantage.generation.forward_passes import ForwardPasses
from vantage.generation.images import PromptImages
from vantage.generation.limits import ContextWatch, GenerationLimits
from vantage.generation.output_processor import OutputProcessor
from vantage.generation.peers import Cancelled, Closed, Forgotten, NoPeers, Peers, StepBegun, Submitted
from vantage.generation.request import Event, Output, QueueFull, Request
from vantage.generation.run_ahead import LaunchedSteps, RunAhead
from vantage.generation.running_samples import RunningSample, by_pass
from vantage.generation.sampling import Constraint, Pick, Sampling, fork_constraint, seed_of
from vantage.generation.scheduler import Scheduler
from vantage.generation.stats import Counters, Stats
from vantage.generation.stops import Stop
from vantage.generation.submission import RequestChecks, new_samples, token_ids
from vantage.model import Model
from vantage.spec.images import PreparedImage


@final
class Engine:
    """Continuous batching: requests join and leave between steps.

    ``capacity``: size of the key/value cache in tokens, in blocks of ``block`` (``None``: it grows). ``rows``:
    maximum batch, in samples. ``queue``: how many requests may wait. ``chunk``: chunked prefill, prompt tokens per
    step (default: 256 on a CPU, 2,048 on a GPU). ``share_prefixes``: prefix caching for requests that begin alike,
    separately for each tenant unless ``share_tenants``; not for encoder-decoders. When blocks run out, unused
    prefixes are dropped, the least recently used first (a cache that grows keeps the last 64); then the request with
    the lowest priority is preempted and computed again later.

    ``batch_invariant``: every request's tokens are bit for bit those of a run alone with the same ``chunk``, on the
    same machine with the same number of threads. Each row is then a pass of its own, so B rows take about B times as
    long as one, and keys and values are copied for every pass; prefixes are shared in whole chunks of prompts only;
    and what a preempted request had generated is computed again token by token.

    ``cache=False`` recomputes the whole text for every token, for comparison.

    ``adapters``: models by name, made from this one by ``with_adapter``. A request may name one. All requests share
    queue, batch and blocks; the rows of one adapter are one pass, and prefixes are shared within an adapter only.

    ``peers``: the processes that run this engine together, each with a share of the model (``generation/peers.py``).

    One thread at a time: an engine has no locks.
    """

    def __init__(
        self,
        model: Model,
        *,
        capacity: int | None = None,
        block: int = BLOCK,
        chunk: int | None = None,
        rows: int = 64,
        queue: int = 1024,
        share_prefixes: bool = True,
        share_tenants: bool = False,
        batch_invariant: bool = False,
        cache: bool = True,
        adapters: Mapping[str, Model] | None = None,
        peers: Peers | None = None,
    ):
        chunk = default_chunk(model.device) if chunk is None else chunk
        for name, value in (("chunk", chunk), ("rows", rows), ("queue", queue)):
            if value < 1:
                raise BadInput(f"{name}={value}: give at least 1")
        self.model, self._limits = model, GenerationLimits.of(model)
        self._passes = ForwardPasses(model, adapters or {}, invariant=batch_invariant)
        self._queue, self._peers = queue, NoPeers() if peers is None else peers
        self._invariant, self._caching = batch_invariant, cache
        self._prompts_first = self._passes.asynchronous  # a GPU gets prompts before its decoded tokens are read
        self._counters, self._context = Counters(), ContextWatch(self._limits)
        memory = BlockMemory(
            model,
            capacity=capacity,
            block=block,
            gather=batch_invariant,
            cut=chunk if batch_invariant else 1,
            share=share_prefixes and cache and model.encoder is None,
        )
        self._chunks = PromptChunks(memory, chunk, batch_invariant, cache)
        self._memory, self._checks = memory, RequestChecks(model, self._limits, memory, rows)
        self._scheduler = Scheduler(
            memory,
            self._limits,
            self._counters,
            rows=rows,
            share_tenants=share_tenants,
            chunks_only=batch_invariant,
        )
        self._ahead = RunAhead(self._passes, self._scheduler, self._limits)
        self._outputs = OutputProcessor(
            memory,
            self._scheduler,
            self._passes,
            self._counters,
            self._context,
            caching=cache,
            keep_answers=not batch_invariant,
        )
        self._ids = 0

    def __repr__(self) -> str:
        waiting, generated = self._scheduler.waiting, self._counters.generated
        return f"<Engine: {waiting} waiting, {generated:,} tokens generated{', idle' * self.idle}>"

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
        prompt_logprobs: int | None = None,
        adapter: str | None = None,
        images: Sequence[PreparedImage] = (),
    ) -> Request:
        """Put a request into the queue. Higher ``priority`` goes first, then who came first.

        ``source``: what an encoder-decoder reads. ``n``: samples, which share the prompt's keys. ``stop``
        strings need a model with a tokenizer. A ``constraint`` serves one sample; for several it must fork.
        ``prompt_logprobs``: the log-probability of every token of the prompt, and the n best, in ``prompt_picks``; with
        it ``max_tokens`` may be 0. ``adapter``: which of the engine's; none: the model as it is. ``images``: as the
        model's image processor gives them, each with as many image tokens in the prompt as it takes.
        Past the context that the model was made for it goes on, and says so: see ``vantage.generation.limits``.
        """
        prompt, read = token_ids("tokens", tokens), None if source is None else token_ids("source", source)
        self._checks.check(prompt, read, max_tokens, n, scores=prompt_logprobs is not None)
        if adapter is not None and adapter not in self._passes.adapters:
            raise BadInput(unknown("adapter", adapter, self._passes.adapters))
        placed = PromptImages.of(self.model, prompt, images)
        constraints = [constraint, *(fork_constraint(constraint) for _ in range(n - 1))]
        seed = seed_of(sampling)
        sampling = replace(sampling, seed=seed)
        outputs = tuple(Output(i, seed, None if self.model.tokenizer is None else "") for i in range(n))
        request = Request(
            self._ids, prompt, max_tokens, sampling, stop, priority, tenant, read, outputs, prompt_logprobs, adapter
        )
        request.images = placed
        samples = new_samples(request, constraints, self.model, self._limits)
        if self._scheduler.waiting >= self._queue:
            raise QueueFull(f"{self._queue} requests are waiting already: try again later, or make the queue longer")
        self._ids += 1
        self._context.prompt(len(prompt), len(read or ()))
        self._scheduler.add(samples[0])
        self._peers.tell(Submitted.of(request, images))
        return request

    @torch.inference_mode()
    def cancel(self, request: Request) -> None:
        """End a request now. Its last event comes with the next step; one that has finished stays as it is."""
        if request.state == "finished":
            return
        if not self._scheduler.has(request):
            raise BadInput(f"{request} is not one of this engine's: cancel it where it was submitted")
        self._peers.tell(Cancelled(request.id))
        self._outputs.end(request, "cancelled")

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One token for every row that decodes, and a chunk of prompts. Returns what happened since the last step."""
        self._peers.tell(StepBegun(), now=True)
        self._counters.steps += 1
        begun, launched = perf_counter(), list[LaunchedSteps]()
        with self._counters.timed("schedule"):
            self._scheduler.admit()
        try:
            self._decode(launched)
            # a GPU gets prompts before what it decodes is read: the host's work is done while it reads them
            tokens, complete = self._prefill()
            steps, seconds = self._take_all(launched)
        finally:
            if launched:  # interrupted: rows hold more than was taken
                self._ahead.clear(self._scheduler.ready("decode"))
        for sample, logits in complete:
            self._begin_answer(sample, logits)
        if tokens and seconds:
            self._ahead.pace.note(perf_counter() - begun, steps, seconds)
        self._context.warn()
        return self._outputs.take_events()

    def run(self) -> list[Event]:
        """Step until nothing is left to do."""
        events = self._outputs.take_events()
        while not self.idle:
            events += self.step()
        return events

    @property
    def idle(self) -> bool:
        return self._scheduler.idle and not self._outputs.events

    @property
    def prompts_wait(self) -> bool:
        """Whether a prompt is yet to be computed, or the rest of one."""
        return self._scheduler.prompts_wait

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
            paths=memory.paths,
        )

    def forget(self) -> None:
        """Let go of all prefixes that are kept for requests to come."""
        self._peers.tell(Forgotten())
        self._memory.prefixes.clear()

    def close(self) -> None:
        """No step comes any more: processes that wait for one are told so."""
        self._peers.tell(Closed(), now=True)

    # ---- a step

    def _decode(self, launched: list[LaunchedSteps]) -> None:
        """One token more for every sample whose prompt is computed; those that a device is choosing, ``launched``."""
        for sample in self._scheduler.ready("decode"):
            if sample.length is not None and len(sample.tokens) > sample.length:
                self._scheduler.restart(sample)
                self._scheduler.lengthen(sample)
                sample.cache = self._memory.new(sample.length)
            elif sample.fed == len(sample.tokens):  # the last step was interrupted before a token was chosen
                self._scheduler.own(sample)
                sample.held().crop(sample.fed - 1)
                sample.fed -= 1
                if sample.siblings or not sample.output.picks:  # before its answer began
                    sample.stage = "prefill"
        samples = self._scheduler.ready("decode")
        if self._invariant:
            groups = [[sample] for sample in samples]
        else:
            groups = by_pass(samples)
        for group in groups:
            group = [sample for sample in group if sample.stage == "decode"]  # one before may have taken its blocks
            if not group:
                continue
            try:
                with self._counters.timed("decode"):  # on a CPU the steps run here, on a GPU they are launched
                    steps = self._ahead.next(group) if self._caching else None
            except Exception as e:
                self._fail(group, e)
                continue
            if steps is None:
                self._run_batch(group)
            else:
                launched.append(steps)
                if not self._prompts_first:
                    self._take_all(launched)

    def _run_batch(self, samples: list[RunningSample]) -> None:
        try:
            with self._counters.timed("schedule"):
                samples, cache = self._scheduler.batch(samples)
            if cache is None:
                return
            with self._counters.timed("decode"):
                logits = self._passes.decode(samples, cache)
        except Exception as e:
            return self._fail(samples, e)
        self._counters.calls += 1
        for sample in samples:
            sample.feed()
        self._choose(samples, logits)

    def _take_all(self, launched: list[LaunchedSteps]) -> tuple[int, float]:
        """Take all that was launched. How many steps that were, and what they took of the device."""
        steps, seconds = 0, 0.0
        while launched:
            self._take_steps(one := launched.pop(0))
            steps, seconds = steps + one.steps, seconds + (one.pending.seconds or 0.0)
        return steps, seconds

    def _take_steps(self, launched: LaunchedSteps) -> None:
        """Take the tokens that the device has chosen."""
        apply, complete = [launched.apply_to(i) for i in range(len(launched.samples))], False
        try:
            with self._counters.timed("decode"):
                chosen = launched.take()
            self._counters.calls += launched.steps
            with self._counters.timed("pick"):
                for tokens, logprobs, fine in zip(*chosen, strict=True):
                    rows = zip(launched.samples, apply, tokens, logprobs, fine, strict=True)
                    for sample, applies, token, logprob, good in rows:
                        if applies and sample.stage == "decode":
                            sample.feed()
                            self._outputs.take(sample, take_pick(sample, Pick(token, logprob), fine=good))
            complete = True
        finally:
            if not complete:  # interrupted: rows hold more than was taken
                self._ahead.clear(self._scheduler.ready("decode"))

    def _prefill(self) -> tuple[int, list[tuple[RunningSample, Tensor]]]:
        """Prompts by rank, until a chunk's worth of tokens is done: how many were computed, and whose logits are on
        their way."""
        left, complete = self._chunks.size, list[tuple[RunningSample, Tensor]]()
        for sample in self._scheduler.ready("prefill"):
            while left > 0 and sample.stage == "prefill":  # one before may have taken its blocks
                end = self._chunks.end(sample)
                with self._counters.timed("schedule"):
                    fits = self._scheduler.room(sample.held(), end - sample.fed, sample)
                if not fits:
                    break
                left -= end - sample.fed
                if (logits := self._run_chunk(sample, end)) is not None:
                    complete.append((sample, logits))
                    if not self._prompts_first:
                        self._begin_answer(*complete.pop())
                if not self._caching:
                    break  # it begins anew for every token: one a step, as with a cache
        return self._chunks.size - left, complete

    def _run_chunk(self, sample: RunningSample, end: int) -> Tensor | None:
        """The logits (V,) after a prompt's last token, where it was among these."""
        start = sample.fed
        try:
            with self._counters.timed("prefill"):
                logits = self._passes.prefill(sample, end)
        except Exception as e:
            self._fail([sample], e)
            return None
        again = max(0, min(end, sample.reached) - start)
        sample.request.recomputed += again
        self._counters.recomputed += again
        self._counters.prefilled += max(0, min(end, len(sample.request.tokens)) - max(start, sample.reached))
        self._counters.calls += 1
        sample.fed, sample.reached = end, max(sample.reached, end)
        if logits is not None:
            sample.stage = "decode"
        return logits

    def _begin_answer(self, sample: RunningSample, logits_V: Tensor) -> None:
        """A prompt is computed: every sample of its request gets a row and its first token."""
        try:
            with self._counters.timed("schedule"):
                if sample.fed <= len(sample.request.tokens) or not self._invariant:
                    self._scheduler.keep(sample)
                samples = self._scheduler.fork(sample)
        except Exception as e:
            return self._fail([sample], e)
        if sample.request.max_tokens:
            self._choose(samples, logits_V.expand(len(samples), -1))
        else:
            for one in samples:
                self._outputs.end_scored(one)

    def _choose(self, samples: list[RunningSample], logits_BV: Tensor) -> None:
        """A token for each."""
        choices = self._peers.choose(samples, logits_BV)
        for sample in samples:
            with self._counters.timed("pick"):
                choice = next(choices)
            if sample.stage != "done":  # another sample of its request may have failed
                self._outputs.take(sample, choice)

    def _fail(self, samples: list[RunningSample], error: Exception) -> None:
        """A fault ends the requests of its pass. Their rows were rolled back by the cache, and are freed.

        Where other processes have shares of the model, they are in the middle of that pass: none of them can go on.
        """
        if not self._peers.alone:
            raise error
        for request in dict.fromkeys(sample.request for sample in samples):
            self._outputs.fail(request, error)
