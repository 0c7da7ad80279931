"""Beam search: the best of several texts kept side by side, their caches exchanged as they overtake each other.

The rules are those of transformers' ``generate(num_beams=…)``, so results can be compared: candidates
are ranked by summed log-probability, finished texts by that sum over length ** length_penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.errors import BadInput
from vantage.generation.stops import Stop
from vantage.model import Model
from vantage.spec.parts import EncoderOutput


@final
@dataclass(frozen=True)
class Beams:
    """How to search. ``early_stopping``: True ends as soon as ``beams`` texts are finished; False when the best
    running text, at its present length, is behind the worst of those; "never" when it would be at any length."""

    beams: int = 4
    n_best: int = 1
    length_penalty: float = 1.0  # above 0 favours long texts, below 0 short ones
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beams:
            raise BadInput(f"the {self.n_best} best of {self.beams} beams: give 1 ≤ n_best ≤ beams")
        if self.early_stopping not in (True, False, "never"):
            raise BadInput(f"early_stopping={self.early_stopping!r}: give True, False or 'never'")
        if not abs(self.length_penalty) < 100:
            raise BadInput(f"length_penalty={self.length_penalty!r}: give a number near 1")


@final
@dataclass(frozen=True)
class Hypothesis:
    """A finished text."""

    tokens: tuple[int, ...]
    logprob: float  # summed
    score: float  # by which it is ranked
    finish: str  # "stop" or "length"


@final
@dataclass(frozen=True, eq=False)
class BeamResult:
    """The best texts, best first, and what finding them took."""

    best: tuple[Hypothesis, ...]
    calls: int
    computed: int
    cache: ModelCache


@final
@dataclass(frozen=True)
class _Running:
    tokens: tuple[int, ...]
    logprob: float
    row: int  # of the cache, whose keys these tokens continue


@torch.inference_mode()
def beam_search(
    model: Model,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    beams: Beams = Beams(),
    stop: Stop | int | Sequence[int] | None = None,
    kind: str = "contiguous",
    source: Tensor | EncoderOutput | None = None,
) -> BeamResult:
    """The best continuations of ``tokens``. A text ends with a stop token, which is its last, or after ``max_tokens``.

    Where frequencies depend on the length, the whole search runs at one that holds all of it.
    """
    stop = Stop.of(stop)
    if stop.strings:
        raise BadInput(f"beam search stops at tokens, not at strings: got {list(stop.strings)}")
    if not tokens or max_tokens < 1:
        raise BadInput(f"{len(tokens)} tokens to go on from, max_tokens={max_tokens}: give at least 1 of each")
    search = _Search(beams, stop.tokens, max_tokens)
    cache = model.new_cache(kind=kind, length=_length(model, len(tokens) + max_tokens))
    device = model.device
    running, new = [_Running((), 0.0, 0)], torch.tensor([list(tokens)], device=device)
    calls = computed = 0
    while True:
        logits = model.head(model.hidden(new, cache=cache, source=source)[:, -1:])[:, 0]
        calls, computed, source = calls + 1, computed + new.numel(), None
        running = search.step(running, logits.double().log_softmax(-1).cpu())
        if search.over:
            return BeamResult(tuple(search.finished[: beams.n_best]), calls, computed, cache)
        cache.reorder([one.row for one in running])
        new = torch.tensor([one.tokens[-1:] for one in running], device=device)


def _length(model: Model, wanted: int) -> int | None:
    """The declared length that holds so many tokens, in the doubling steps in which a text would grow."""
    length = model.spec.original_length
    while length is not None and length < wanted:
        length *= 2
    return length


@final
class _Search:
    """Which texts go on and which are finished; knows nothing of models."""

    def __init__(self, beams: Beams, ends: frozenset[int], most: int):
        self._beams, self._ends, self._most = beams, ends, most
        # so many that enough are left to go on when some end here
        self._wide = max(2, 1 + len(ends)) * beams.beams
        self.finished: list[Hypothesis] = []  # best first
        self.over = False

    def step(self, running: Sequence[_Running], logprobs_RV: Tensor) -> list[_Running]:
        """One token more for every text: those that go on."""
        candidates = self._candidates(running, logprobs_RV)
        going: list[_Running] = []
        for rank, one in enumerate(candidates):
            if not self._ends_at(one):
                going.append(one)
            elif rank < self._beams.beams:  # the others were only there in case too few go on
                self._finish(one)
        going = going[: self._beams.beams]
        length = len(candidates[0].tokens)
        self.over = not going or self._full_early() or not self._can_improve(going[0].logprob, length)
        return going

    def _candidates(self, running: Sequence[_Running], logprobs_RV: Tensor) -> list[_Running]:
        vocab = logprobs_RV.shape[1]
        sums = logprobs_RV + torch.tensor([one.logprob for one in running], dtype=torch.float64)[:, None]
        best = sums.flatten().topk(min(self._wide, sums.numel()))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [_Running((*running[at // vocab].tokens, at % vocab), total, at // vocab) for total, at in pairs]

    def _ends_at(self, one: _Running) -> bool:
        return one.tokens[-1] in self._ends or len(one.tokens) == self._most

    def _finish(self, one: _Running) -> None:
        why = "stop" if one.tokens[-1] in self._ends else "length"
        score = one.logprob / len(one.tokens) ** self._beams.length_penalty
        self.finished.append(Hypothesis(one.tokens, one.logprob, score, why))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self._beams.beams :]

    def _full(self) -> bool:
        return len(self.finished) == self._beams.beams

    def _full_early(self) -> bool:
        return self._beams.early_stopping is True and self._full()

    def _can_improve(self, best: float, length: int) -> bool:
        """Whether the best running text may still come before the worst finished one."""
        if not self._full():
            return True
        beams = self._beams
        if beams.early_stopping == "never" and beams.length_penalty > 0:
            length = self._most
        return best / length**beams.length_penalty > self.finished[-1].score
