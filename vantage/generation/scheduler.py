"""Who runs, who waits and who makes room. No model is called here."""

from __future__ import annotations

from typing import final

from vantage.cache import ModelCache
from vantage.generation.lane import Batch, Lane
from vantage.generation.limits import Limits
from vantage.generation.memory import Memory
from vantage.generation.request import Request
from vantage.generation.stats import Counters


@final
class Scheduler:
    """Lanes by rank. ``rows``: how many may run at once."""

    def __init__(
        self, memory: Memory, limits: Limits, counters: Counters, *, rows: int, share_tenants: bool, chunks_only: bool
    ):
        self._chunks_only = chunks_only  # batch-invariant: only what was computed in the same chunks is the same
        self.memory, self._limits, self._counters = memory, limits, counters
        self._rows, self._share_tenants = rows, share_tenants
        self._waiting: list[Lane] = []
        self._active: list[Lane] = []
        self._batches: dict[int | None, Batch] = {}  # by declared length: other lengths are other frequencies

    # ---- looking

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._active

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return len({lane.request.id for lane in self._waiting if lane.request.prefix is None})

    def has(self, request: Request) -> bool:
        return any(lane.request is request for lane in (*self._active, *self._waiting))

    def ready(self, stage: str) -> list[Lane]:
        """Active lanes at this stage, by rank."""
        return sorted((lane for lane in self._active if lane.stage == stage), key=lambda lane: lane.rank)

    def caches(self) -> list[ModelCache]:
        """Every cache that somebody runs with now."""
        rows = [lane.cache for lane in self._active if lane.cache is not None]
        return rows + [cache for batch in self._batches.values() for cache in batch.caches]

    # ---- coming

    def add(self, lane: Lane) -> None:
        self._waiting.append(lane)

    def admit(self) -> None:
        """Let lanes in, by rank, while there are rows and blocks for all of their tokens."""
        while self._waiting:
            lane = min(self._waiting, key=lambda lane: lane.rank)
            if sum(other.rows for other in self._active) + lane.rows > self._rows:
                return
            if not self._begin(lane):
                return
            self._waiting.remove(lane)
            self._active.append(lane)

    def _begin(self, lane: Lane) -> bool:
        """Give a lane its row, with what was computed before. False: there are not enough blocks now."""
        if lane.length is None:
            lane.length = self._limits.declared(len(lane.tokens) + 1)
        elif len(lane.tokens) > lane.length:
            self.lengthen(lane)
        # the last token is left to compute, for its logits; those that were generated were not computed in chunks
        sought = lane.tokens[: min(len(lane.tokens) - 1, lane.chunked)] if self._chunks_only else lane.tokens[:-1]
        match, row = self.memory.found(lane.key(self._share_tenants), sought)
        need = len(lane.tokens) + 1 - match.tokens
        while not self.memory.spare(row, need, self._promised()) and self._active:
            below = [other for other in self._active if other.request.priority < lane.request.priority]
            # prefixes are not let go for nothing
            enough = below or self.memory.could_spare(row, need, self._promised(), self.caches())
            if not enough or not (self._evict() or self._preempt_last(below)):
                row.free()
                return False
        if lane.request.prefix is None:
            lane.request.prefix = match
        self._counters.reused += match.tokens
        lane.cache, lane.fed, lane.stage = row, match.tokens, "prefill"
        return True

    def _promised(self) -> int:
        """Blocks for those who run: what is left of their prompts, and one more for every row to go on.

        Without it a newcomer would take them, and be the first to make room again.
        """
        left = ((lane.rows, len(lane.tokens) - lane.fed) for lane in self._active)
        return sum(rows + self.memory.blocks(tokens) for rows, tokens in left)

    def lengthen(self, lane: Lane) -> None:
        """Past the declared length the frequencies change: all of it is computed again for a longer one."""
        lane.length, lane.chunked = self._limits.declared(len(lane.tokens) + 1), len(lane.tokens)

    def fork(self, lane: Lane) -> list[Lane]:
        """The prompt is computed: every sample gets a row."""
        siblings, lane.siblings = lane.siblings, []
        for other in siblings:
            other.cache = lane.held().fork()
            other.fed, other.reached, other.length, other.stage = lane.fed, lane.fed, lane.length, lane.stage
            self._counters.reused += lane.fed
        self._active += siblings
        return [lane, *siblings]

    def keep(self, lane: Lane) -> None:
        """Offer what a lane has computed to others, who may share whole blocks while it goes on."""
        self.memory.keep_blocks(lane.key(self._share_tenants), lane.tokens[: lane.fed], lane.held())

    # ---- making room

    def room(self, cache: ModelCache, tokens: int, lane: Lane) -> bool:
        """Make room for so many tokens a row. Unused prefixes go first, then lanes that rank below this one."""
        while not cache.room(tokens):
            below = [other for other in self._active if other.rank > lane.rank]
            if not self._evict() and not self._preempt_last(below) and not self._evict(shared=True):
                return False
        return True

    def batch(self, lanes: list[Lane]) -> tuple[list[Lane], ModelCache | None]:
        """The lanes, of one declared length, that can take one token more, with their joined rows."""
        batch = self._batches.setdefault(lanes[0].length, Batch())
        lanes = list(lanes)
        while lanes:
            cache = batch.open(lanes)
            if cache.room(1):
                return lanes, cache
            others = self._active if len(self._active) > 1 else []
            if not self._evict() and not self._preempt_last(others) and not self._evict(shared=True):
                return lanes, cache  # what it was promised is not there: let the pass say so
            lanes = [lane for lane in lanes if lane.stage == "decode"]
        return [], None

    def _evict(self, *, shared: bool = False) -> bool:
        gone = self.memory.prefixes.evict(shared=shared)
        self._counters.evictions += gone
        return gone

    def _preempt_last(self, lanes: list[Lane]) -> bool:
        """Put the last in rank back into the queue. What it had is computed again when it comes back."""
        if not lanes:
            return False
        lane = max(lanes, key=lambda lane: lane.rank)
        self._counters.preemptions += 1
        lane.request.preemptions += 1
        self.restart(lane)
        self._active.remove(lane)
        self._waiting.append(lane)
        lane.stage = "waiting"
        return True

    def restart(self, lane: Lane) -> None:
        """Forget what is computed."""
        self.own(lane)
        lane.free()
        lane.stage = "prefill"

    # ---- going

    def own(self, lane: Lane) -> None:
        """Take a lane's row out of its batch."""
        if lane.cache is None and lane.length in self._batches:
            self._batches[lane.length].close()

    def finish(self, lane: Lane, *, keep: bool) -> None:
        """A sample is complete; what it computed may serve others."""
        self.own(lane)
        if keep:
            self.memory.keep(lane.key(self._share_tenants), lane.tokens[: lane.fed], lane.held())
            lane.cache = None
        self._leave(lane)

    def drop(self, request: Request) -> None:
        """All lanes of a request go, and their rows are free."""
        for lane in [lane for lane in (*self._active, *self._waiting) if lane.request is request]:
            self.own(lane)
            self._leave(lane)

    def _leave(self, lane: Lane) -> None:
        lane.free()
        lane.stage = "done"
        self._active = [other for other in self._active if other is not lane]
        self._waiting = [other for other in self._waiting if other is not lane]
