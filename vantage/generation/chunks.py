"""How prompts are cut into passes, and how many tokens of the others come between two of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch

from vantage.generation.block_memory import BlockMemory
from vantage.generation.running_samples import RunningSample

MOST, FEW = 16, 4  # tokens of a row that are launched together; few while a prompt waits
ON_HOST, ON_GPU = 256, 2048  # tokens of a chunk: a GPU is at work for some 10 ms with either model size
NEWEST = 0.3  # what the last step counts for in an average


def default_chunk(device: torch.device) -> int:
    """Large enough that reading the weights is a small part of a pass."""
    return ON_GPU if device.type == "cuda" else ON_HOST


@final
@dataclass(frozen=True)
class PromptChunks:
    """``size`` tokens each. ``invariant``: the same chunks whatever else runs; not ``caching``: always all of it."""

    memory: BlockMemory
    size: int
    invariant: bool
    caching: bool

    def end(self, sample: RunningSample) -> int:
        """Chunks end at multiples of their size, whatever else runs, and where the masks allow a cut."""
        if not self.caching:
            return len(sample.tokens)
        if self.invariant and sample.fed >= sample.chunked:
            return sample.fed + 1  # generated tokens go the way they went the first time
        total = sample.chunked if self.invariant else len(sample.tokens)
        end = min(total, sample.fed - sample.fed % self.size + self.size)
        while end < total and not self.memory.settled(end):
            end += 1
        return end


@final
class Pace:
    """How many steps of those who decode go between two chunks of prompts: so many that a chunk at most doubles the
    time that a token takes, as far as ``MOST`` allows. Measured while it runs."""

    def __init__(self) -> None:
        self._step = self._chunk = 0.0  # seconds that a step takes, and what is between those of two launches

    @property
    def steps(self) -> int:
        """For the next launch, while prompts wait."""
        if not self._step:
            return FEW
        return min(MOST, max(FEW, math.ceil(self._chunk / self._step)))

    def note(self, seconds: float, steps: int, device_seconds: float) -> None:
        """An engine's step with a chunk in it took so long, of which so many steps took so much of the device."""
        share = NEWEST if self._step else 1.0
        self._step += share * (device_seconds / steps - self._step)
        self._chunk += share * (max(seconds - device_seconds, 0.0) - self._chunk)
