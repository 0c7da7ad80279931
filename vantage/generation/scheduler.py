"""Who runs, who waits and who makes room. No model is called here."""

from __future__ import annotations

from typing import final

from vantage.cache import ModelCache
from vantage.generation.block_memory import BlockMemory
from vantage.generation.limits import GenerationLimits
from vantage.generation.request import Request
from vantage.generation.running_samples import JoinedRows, RunningSample
from vantage.generation.stats import Counters


@final
class Scheduler:
    """Samples by rank. ``rows``: how many may run at once."""

    def __init__(
        self,
        memory: BlockMemory,
        limits: GenerationLimits,
        counters: Counters,
        *,
        rows: int,
        share_tenants: bool,
        chunks_only: bool,
    ):
        self._chunks_only = chunks_only  # batch-invariant: only what was computed in the same chunks is the same
        self.memory, self._limits, self._counters = memory, limits, counters
        self._rows, self._share_tenants = rows, share_tenants
        self._waiting: list[RunningSample] = []
        self._active: list[RunningSample] = []
        self._batches: dict[tuple[int, str], JoinedRows] = {}  # by what the rows of a pass have in common

    # ---- looking

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._active

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return len({sample.request.id for sample in self._waiting if sample.request.prefix is None})

    @property
    def prompts_wait(self) -> bool:
        """Whether a prompt waits to be computed."""
        return bool(self._waiting) or any(sample.stage == "prefill" for sample in self._active)

    def has(self, request: Request) -> bool:
        return any(sample.request is request for sample in (*self._active, *self._waiting))

    def ready(self, stage: str) -> list[RunningSample]:
        """Active samples at this stage, by rank."""
        return sorted((sample for sample in self._active if sample.stage == stage), key=lambda sample: sample.rank)

    def caches(self) -> list[ModelCache]:
        """Every cache that somebody runs with now."""
        rows = [sample.cache for sample in self._active if sample.cache is not None]
        return rows + [cache for batch in self._batches.values() for cache in batch.caches]

    # ---- coming

    def add(self, sample: RunningSample) -> None:
        self._waiting.append(sample)

    def admit(self) -> None:
        """Let samples in, by rank, while there are rows and blocks for all of their tokens."""
        while self._waiting:
            sample = min(self._waiting, key=lambda sample: sample.rank)
            if sum(other.rows for other in self._active) + sample.rows > self._rows:
                return
            if not self._begin(sample):
                return
            self._waiting.remove(sample)
            self._active.append(sample)

    def _begin(self, sample: RunningSample) -> bool:
        """Give a sample its row, with what was computed before. False: there are not enough blocks now."""
        if sample.length is None:
            sample.length = self._limits.declared(len(sample.tokens) + 1)
        elif len(sample.tokens) > sample.length:
            self.lengthen(sample)
        # the last token is left to compute, for its logits; those that were generated were not computed in chunks
        end = len(sample.tokens) - 1
        sought = sample.names(min(end, sample.chunked) if self._chunks_only else end)
        key = sample.key(self._share_tenants)
        match, row = self.memory.unshared(key) if sample.scoring else self.memory.find(key, sought)
        need = len(sample.tokens) + 1 - match.tokens
        while not self.memory.spare(row, need, self._promised()) and self._active:
            below = [other for other in self._active if other.request.priority < sample.request.priority]
            # prefixes are not let go for nothing
            enough = below or self.memory.could_spare(row, need, self._promised(), self.caches())
            if not enough or not (self._evict() or self._preempt_last(below)):
                row.free()
                return False
        if sample.request.prefix is None:
            sample.request.prefix = match
        self._counters.reused += match.tokens
        sample.cache, sample.fed, sample.stage = row, match.tokens, "prefill"
        return True

    def _promised(self) -> int:
        """Blocks for those who run: what is left of their prompts, and one more for every row to go on.

        Without it a newcomer would take them, and be the first to make room again.
        """
        left = ((sample.rows, len(sample.tokens) - sample.fed) for sample in self._active)
        return sum(rows + self.memory.blocks(tokens) for rows, tokens in left)

    def lengthen(self, sample: RunningSample) -> None:
        """Past the declared length the frequencies change: all of it is computed again for a longer one."""
        sample.length, sample.chunked = self._limits.declared(len(sample.tokens) + 1), len(sample.tokens)

    def fork(self, sample: RunningSample) -> list[RunningSample]:
        """The prompt is computed: every sample gets a row."""
        siblings, sample.siblings = sample.siblings, []
        for other in siblings:
            other.cache = sample.held().fork()
            other.fed, other.reached, other.length, other.stage = sample.fed, sample.fed, sample.length, sample.stage
            self._counters.reused += sample.fed
        self._active += siblings
        return [sample, *siblings]

    def keep(self, sample: RunningSample) -> None:
        """Offer what a sample has computed to others, who may share whole blocks while it goes on."""
        self.memory.keep_blocks(sample.key(self._share_tenants), sample.names(sample.fed), sample.held())

    # ---- making room

    def room(self, cache: ModelCache, tokens: int, sample: RunningSample) -> bool:
        """Make room for so many tokens a row. Unused prefixes go first, then samples that rank below this one."""
        while not cache.room(tokens):
            below = [other for other in self._active if other.rank > sample.rank]
            if not self._evict() and not self._preempt_last(below) and not self._evict(shared=True):
                return False
        return True

    def spare(self, samples: list[RunningSample], tokens: int) -> bool:
        """Whether the blocks that nobody uses are enough for so many tokens more of each of these."""
        return self.memory.spare_for([sample.held() for sample in samples], tokens)

    def batch(self, samples: list[RunningSample]) -> tuple[list[RunningSample], ModelCache | None]:
        """The samples, all of one pass, that can take one token more, with their joined rows."""
        batch = self._batches.setdefault(samples[0].pass_key, JoinedRows())
        samples = list(samples)
        while samples:
            cache = batch.open(samples)
            if cache.room(1):
                return samples, cache
            others = self._active if len(self._active) > 1 else []
            if not self._evict() and not self._preempt_last(others) and not self._evict(shared=True):
                return samples, cache  # what it was promised is not there: let the pass say so
            samples = [sample for sample in samples if sample.stage == "decode"]
        return [], None

    def _evict(self, *, shared: bool = False) -> bool:
        gone = self.memory.prefixes.evict(shared=shared)
        self._counters.evictions += gone
        return gone

    def _preempt_last(self, samples: list[RunningSample]) -> bool:
        """Put the last in rank back into the queue. What it had is computed again when it comes back."""
        if not samples:
            return False
        sample = max(samples, key=lambda sample: sample.rank)
        self._counters.preemptions += 1
        sample.request.preemptions += 1
        self.restart(sample)
        self._active.remove(sample)
        self._waiting.append(sample)
        sample.stage = "waiting"
        return True

    def restart(self, sample: RunningSample) -> None:
        """Forget what is computed."""
        self.own(sample)
        sample.free()
        sample.stage = "prefill"

    # ---- going

    def own(self, sample: RunningSample) -> None:
        """Take a sample's row out of its batch."""
        if sample.cache is None and sample.pass_key in self._batches:
            self._batches[sample.pass_key].close()

    def crop_back(self, sample: RunningSample) -> None:
        """Its row holds what the sample has taken, where more was computed ahead."""
        self.own(sample)
        if sample.held().tokens[0] > sample.fed:
            sample.held().crop(sample.fed)

    def finish(self, sample: RunningSample, *, keep: bool) -> None:
        """A sample is complete; what it computed may serve others."""
        self.crop_back(sample)
        if keep:
            self.memory.keep(sample.key(self._share_tenants), sample.names(sample.fed), sample.held())
            sample.cache = None
        self._leave(sample)

    def drop(self, request: Request) -> None:
        """All samples of a request go, and their rows are free."""
        for sample in [sample for sample in (*self._active, *self._waiting) if sample.request is request]:
            self.own(sample)
            self._leave(sample)

    def _leave(self, sample: RunningSample) -> None:
        sample.free()
        sample.stage = "done"
        self._active = [other for other in self._active if other is not sample]
        self._waiting = [other for other in self._waiting if other is not sample]
