"""Tokens that the device computes and chooses before anybody sees the first of them.

Several steps of the same samples are launched together. A GPU gets the next ones before the last are read, so that it
never waits for the host; on a CPU they run without Python in between, for a tenth of a second or one step: nobody
waits longer for a token that is there, or for a request that comes or goes. What was computed past the end of an
answer is taken back from its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import final

from vantage.generation.chunks import MOST, Pace
from vantage.generation.forward_passes import ForwardPasses
from vantage.generation.limits import GenerationLimits
from vantage.generation.running_samples import RunningSample
from vantage.generation.scheduler import Scheduler
from vantage.spec.sampling import Chosen, PendingSteps

MAX_CPU_SECONDS = 0.1  # seconds that steps may take together on a CPU
MIN_REMAINING = 4  # of the longest answer: with fewer to come nothing more is launched before these are read


@final
@dataclass(eq=False)
class LaunchedSteps:
    """Steps under way."""

    samples: list[RunningSample]
    ends: list[int]  # tokens that each row holds after them
    steps: int
    pending: PendingSteps
    after: LaunchedSteps | None = None  # those of the same samples that they go on from, until these are taken
    taken: bool = False

    def apply_to(self, i: int) -> bool:
        """Whether sample i still stands where these steps began: it may have ended or been put back."""
        sample = self.samples[i]
        return sample.stage == "decode" and sample.cache is not None and sample.fed == self.ends[i] - self.steps

    def awaited(self) -> bool:
        """Whether some sample stands where these steps began, or will once those before them are taken."""
        if self.after is not None and not self.after.taken:
            return self.after.awaited()
        return any(self.apply_to(i) for i in range(len(self.samples)))

    def take(self) -> Chosen:
        """What was chosen; waits for it."""
        self.taken, self.after = True, None
        return self.pending.read()


@final
class RunAhead:
    """What an engine has launched and not yet read, for each group of samples that share a pass."""

    def __init__(self, passes: ForwardPasses, scheduler: Scheduler, limits: GenerationLimits):
        self._passes, self._scheduler, self._limits = passes, scheduler, limits
        self._launched: list[LaunchedSteps] = []
        self.pace = Pace()
        self._seconds = MAX_CPU_SECONDS  # that a step took last on a CPU

    def next(self, samples: list[RunningSample]) -> LaunchedSteps | None:
        """Steps to be read now, with the next ones already launched; ``None``: the host must choose these tokens."""
        steps = self._of(samples) or self._launch(samples, None)
        if steps is None:
            return None
        if self._passes.asynchronous and steps.samples == samples and not self._scheduler.prompts_wait:
            following = self._launch(samples, steps)
            if following is not None:
                self._launched.append(following)
        return steps

    def _of(self, samples: list[RunningSample]) -> LaunchedSteps | None:
        """What is under way for any of these, taken out of the list; what nobody waits for any more goes as well."""
        mine = {id(sample) for sample in samples}
        self._launched = [one for one in self._launched if one.awaited()]
        for i, one in enumerate(self._launched):
            if any(id(sample) in mine for sample in one.samples):
                return self._launched.pop(i)
        return None

    def clear(self, samples: Sequence[RunningSample]) -> None:
        """Nothing is under way any more, and every row holds what its sample has taken."""
        self._launched.clear()
        for sample in samples:
            if sample.stage == "decode":
                self._scheduler.crop_back(sample)

    def _launch(self, samples: list[RunningSample], after: LaunchedSteps | None) -> LaunchedSteps | None:
        if not self._passes.runs_ahead(samples):
            return None
        fed = [sample.fed for sample in samples] if after is None else after.ends
        coming = 0 if after is None else after.steps
        steps = self._steps(samples, fed, coming)
        choices = [choice for sample in samples if (choice := sample.picker.choice(steps, coming)) is not None]
        if steps < 1 or len(choices) < len(samples):
            return None
        for sample in samples:
            self._scheduler.own(sample)
        while steps > 1 and not self._scheduler.spare(samples, steps):
            steps //= 2
        if not self._scheduler.spare(samples, steps):
            return None
        started = perf_counter()
        pending = self._passes.decode_ahead(samples, steps, choices, None if after is None else after.pending)
        self._seconds = (perf_counter() - started) / steps
        return None if pending is None else LaunchedSteps(samples, [n + steps for n in fed], steps, pending, after)

    def _steps(self, samples: Sequence[RunningSample], fed: Sequence[int], coming: int) -> int:
        """How many tokens may be computed at once: within the positions there are, and not far past all answers."""
        ends = [n for n in (self._limits.table, samples[0].length) if n is not None]
        room = [end - n for n in fed for end in ends]
        left = max(sample.text.left for sample in samples) - coming
        if coming and left < MIN_REMAINING:
            return 0
        most = self.pace.steps if self._scheduler.prompts_wait else MOST
        if not self._passes.asynchronous:
            most = min(most, max(int(MAX_CPU_SECONDS / self._seconds), 1))
        return min(most, left, *room)
